"""Sizes: layers, width and heads of a transformer."""

from dataclasses import dataclass

from ..system.hints import did_you_mean


@dataclass(frozen=True)
class Size:
    """Size of a transformer: blocks, width (features per token) and attention heads, which share the width equally."""

    layers: int
    width: int
    heads: int

    def __post_init__(self) -> None:
        # far more than anyone uses: a damaged file must not allocate all memory
        if not (1 <= self.layers <= 1000 and 1 <= self.width <= 1 << 16 and 1 <= self.heads <= self.width):
            raise ValueError(
                f"layers must be from 1 to 1000, width from 1 to 65536 and heads from 1 to width, got {self}"
            )
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width must be a multiple of 2·heads (rotary embedding rotates pairs of numbers), "
                f"got width={self.width}, heads={self.heads}"
            )

    @classmethod
    def of(cls, size: "str | Size") -> "Size":
        """The size with this name; a Size is returned unchanged."""
        if isinstance(size, Size):
            return size
        if size not in SIZES:
            hint = did_you_mean(str(size), SIZES) or f"sizes are {', '.join(SIZES)}, or Size(layers, width, heads)"
            raise ValueError(f"there is no size {size!r}; {hint}")
        return SIZES[size]


# the head width is 64, in `micro` and `tiny` 32: otherwise they would have one or two heads
SIZES = {
    "micro": Size(3, 64, 2),
    "tiny": Size(3, 128, 4),
    "mini": Size(6, 384, 6),
    "small": Size(12, 768, 12),
    "medium": Size(24, 1024, 16),
}
"""`small` is the size of the paper and of GPT-2. App. C [C]"""
