"""Sizes: how deep and how wide a transformer is."""

from dataclasses import dataclass

from ..hints import did_you_mean


@dataclass(frozen=True)
class Size:
    """Blocks, numbers per token, and attention heads, which share the width equally."""

    layers: int
    width: int
    heads: int

    def __post_init__(self) -> None:
        # far beyond use; a damaged file should not keep a machine busy
        if not (1 <= self.layers <= 1000 and 1 <= self.width <= 1 << 16 and 1 <= self.heads <= self.width):
            raise ValueError(f"a transformer has 1 to 1000 layers, a width of 1 to 65536 and at least one head; {self}")
        if self.width % (2 * self.heads):
            raise ValueError(
                f"every head gets an equal and even part of the width (rotary positions turn pairs of numbers); "
                f"{self.width} / {self.heads} is not"
            )

    @classmethod
    def of(cls, size: "str | Size") -> "Size":
        """A size by its name, or as it is."""
        if isinstance(size, Size):
            return size
        if size not in SIZES:
            hint = did_you_mean(str(size), SIZES) or f"sizes are {', '.join(SIZES)}, or Size(layers, width, heads)"
            raise ValueError(f"there is no size {size!r}; {hint}")
        return SIZES[size]


# heads are 64 wide, in `micro` and `tiny` 32: one or two heads would be few
SIZES = {
    "micro": Size(3, 64, 2),
    "tiny": Size(3, 128, 4),
    "mini": Size(6, 384, 6),
    "small": Size(12, 768, 12),
    "medium": Size(24, 1024, 16),
}
"""`small` is the paper's and GPT-2's. App. C [C]"""
