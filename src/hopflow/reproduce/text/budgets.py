"""All budgets by name: those of the text study, and those of the study of rectified pairs."""

from ..rectified.variants import RECTIFIED_BUDGETS
from .protocol import CHARACTER_VARIANTS, LAPTOP_VARIANTS, VARIANTS, Budget

BUDGETS: dict[str, Budget] = {
    budget.name: budget
    for budget in (
        Budget(
            "full",
            VARIANTS,
            "text.md",
            introduction=(
                "The same claims for a small network on characters: [Text study with characters](text_characters.md)."
            ),
        ),
        Budget(
            "characters",
            CHARACTER_VARIANTS,
            "text_characters.md",
            title="the paper's claims about text, with characters and a small network",
            introduction=(
                "The [text study](text.md) at a size that two CPU cores train, on the characters of Shakespeare: the "
                "same recipes and rules, but only one test set, one judge, and samples with η = 0. It shows what holds "
                "for a small network, 65 tokens and a short training, and nothing about words, large networks or long "
                "trainings."
            ),
        ),
        Budget("laptop", LAPTOP_VARIANTS),
        *RECTIFIED_BUDGETS,
    )
}
