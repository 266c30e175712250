"""TrainingPairs: the pairs (x0, x1) that a flow is trained on, one OT batch after the other, for measurements."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from ..flow import Flow
from ..network.network import Network
from .ot_batch import OTDraw, OTProblem
from .rectified_pairs import RectifiedPairs


@dataclass(frozen=True, eq=False)
class TrainingPairs:
    """Pairs from the coupling of a flow, or from its pair store, with the random streams of training."""

    flow: Flow
    stored: RectifiedPairs | None

    @classmethod
    def of(cls, flow: Flow, length: int) -> "TrainingPairs":
        """The pairs of sequences of this length; a ValueError if the coupling names a store that does not fit."""
        return cls(flow, None if flow.coupling.pair_store is None else RectifiedPairs.open(flow, length))

    def batch(
        self,
        x1: Int[Tensor, "n L"],
        seed: int,
        index: int,
        *,
        group: Int[Tensor, " n"] | None = None,
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
    ) -> tuple[Int[Tensor, "n L"], Int[Tensor, "n L"]]:
        """The pairs of OT batch `index`: of these data rows, or as many of the store.

        `group` has a label for each data row, if rows are paired within their labels.
        """
        if self.stored is not None:
            return self.stored.next_to(x1, seed, index)
        draw = OTDraw(seed, index, len(x1), len(x1))
        return OTProblem(draw, x1, group, embedding, network).solve(self.flow).x0, x1
