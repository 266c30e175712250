"""All budgets by name: those of the text study, and those of the study of rectified pairs."""

from ..rectified.variants import RECTIFIED_BUDGETS
from .protocol import LAPTOP_VARIANTS, VARIANTS, Budget

BUDGETS: dict[str, Budget] = {
    budget.name: budget for budget in (Budget("full", VARIANTS), Budget("laptop", LAPTOP_VARIANTS), *RECTIFIED_BUDGETS)
}
