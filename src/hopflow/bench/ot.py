"""Speed of the OT solvers against POT: the same costs, solved in one run."""

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ..costs import Hamming, SquaredEmbedding
from ..runs.ot_batch import one_thread
from ..transport import assignment
from ..transport.cost_matrix import CostMatrix
from ..transport.sinkhorn import TransportPlan, sinkhorn

EPS = 0.01
"""Regularization of both Sinkhorn solvers, relative to the largest cost."""
TOL = 1e-6
WORDS = 50_257
REPEATS = 7
SECONDS = 12.0
"""Time limit of one measurement; at least one run is made, and none starts after the limit."""


@dataclass(frozen=True)
class SolverCase:
    """One cost matrix between n random sequences: few uniform tokens, or frequencies like those of words (1/rank).

    With a width: squared distances of random embeddings; otherwise Hamming distances.
    """

    cost: str
    n: int
    length: int
    tokens: int
    width: int | None = None

    def __str__(self) -> str:
        return f"{self.cost} n={self.n} L={self.length} V={self.tokens}" + (f" D={self.width}" if self.width else "")


@dataclass(frozen=True)
class SolverSpeed:
    """One solver on one case: median milliseconds, mean cost of a pair (`value`), and its gain over independent pairs.

    `marginal_error` is Σ |mass - 1/n| over rows and columns; `gain` 0.1 is ten per cent below independent pairs.
    """

    solver: str
    case: SolverCase
    device: str
    ms: float
    value: float
    marginal_error: float
    gain: float

    def as_json(self) -> dict[str, Any]:
        row = asdict(self)
        return {**row.pop("case"), **row}


def grid(full: bool = False, n: int | None = None) -> Iterator[SolverCase]:
    """The cases of a run on the CPU; `n` selects one size."""
    sizes = (64, 128, 256, 512, 1024, 2048, 4096) if full else (64, 512, 2048)
    for size in (n,) if n else sizes:
        for length in (128, 1024) if full else (128,):
            yield SolverCase("hamming", size, length, tokens=3)
            yield SolverCase("hamming_words", size, length, tokens=WORDS)
            for width in (256, 768, 1536) if full else (256,):
                yield SolverCase("squared_embedding", size, length, WORDS, width)


def gpu_grid(n: int | None = None) -> Iterator[SolverCase]:
    """The cases of a run on a GPU, which also computes the cost matrix."""
    for size in (n,) if n else (512, 1024, 2048, 4096):
        yield SolverCase("squared_embedding", size, 128, WORDS, 768)


def run(
    *, full: bool = False, n: int | None = None, seed: int = 0, progress: Callable[[str], None] = lambda text: None
) -> list[SolverSpeed]:
    """Every solver on every case; Sinkhorn also on the GPU, if there is one.

    torch solves with one thread: its threads wait for each other, and another process in parallel makes them ten times
    slower.
    """
    pot = _pot()
    rows: list[SolverSpeed] = []
    for case in grid(full, n):
        progress(str(case))
        matrix = cost_matrix(case, seed)  # with all threads: the largest cost matrix takes minutes
        with one_thread():
            rows += measure(case, matrix, pot)
    for case in gpu_grid(n) if torch.cuda.is_available() else ():
        progress(f"{case} on the GPU")
        with one_thread():
            rows += measure_on(torch.device("cuda"), case, seed, pot)
    return rows


def measure(case: SolverCase, matrix: CostMatrix, pot: Any) -> list[SolverSpeed]:
    """All solvers on one case: POT on the full float64 cost, as its users call it; hopflow on what couplings pass."""
    full = matrix.full().double()
    independent = float(full.mean())
    mass, array = torch.full((case.n,), 1 / case.n, dtype=torch.float64).numpy(), full.numpy()
    rows: list[SolverSpeed] = []

    def add(solver: str, solve: Callable[[], Any], value: Callable[[Any], tuple[float, float]], device: str) -> None:
        ms, found = _timed(solve, device)
        cost, error = value(found)
        rows.append(SolverSpeed(solver, case, device, ms, cost, error, 1 - cost / independent))

    def of_order(order: Tensor) -> tuple[float, float]:
        return float(full.gather(1, order.cpu()[:, None]).mean()), 0.0

    def of_plan(plan: Any) -> tuple[float, float]:
        t = torch.as_tensor(plan, dtype=torch.float64)
        error = (t.sum(0) - 1 / case.n).abs().sum() + (t.sum(1) - 1 / case.n).abs().sum()
        return float((t * full).sum()), float(error)

    def exact(engine: str | None) -> Callable[[], Tensor]:
        return lambda: assignment.assignment(matrix.pairwise, engine)

    def ours(costs: CostMatrix) -> Callable[[], TransportPlan]:
        return lambda: sinkhorn(costs.pairwise.double(), EPS, scale=costs.max(), tol=TOL)

    def theirs(uniform: Any, cost: Any) -> Callable[[], Any]:
        return lambda: pot.sinkhorn(uniform, uniform, cost / cost.max(), EPS, stopThr=TOL)

    add("hopflow_exact", exact(None), of_order, "cpu")
    for engine in assignment.ENGINES if assignment.best_engine() == "lapx" else ("scipy",):
        add(engine, exact(engine), of_order, "cpu")
    add("pot_emd", lambda: pot.emd(mass, mass, array, numItermax=10_000_000), of_plan, "cpu")
    add("hopflow_sinkhorn", ours(matrix), lambda found: of_plan(found.plan() / case.n), "cpu")
    add("pot_sinkhorn", theirs(mass, array), of_plan, "cpu")
    if torch.cuda.is_available():
        of_rows, of_columns = (None if part is None else part.cuda() for part in (matrix.rows, matrix.columns))
        on_gpu, uniform = CostMatrix(matrix.pairwise.cuda(), of_rows, of_columns), torch.as_tensor(mass).cuda()
        add("hopflow_sinkhorn", ours(on_gpu), lambda found: of_plan(found.plan().cpu() / case.n), "cuda")
        add("pot_sinkhorn", theirs(uniform, full.cuda()), lambda found: of_plan(found.cpu()), "cuda")
    return rows


def measure_on(device: torch.device, case: SolverCase, seed: int, pot: Any) -> list[SolverSpeed]:
    """The cost matrix of a case on a GPU, by hopflow and by torch.cdist in float32, and the solvers on it.

    POT runs in float64, as its users call it, and in float32; hopflow in float64. The times include the conversion to
    float64 and the search for the largest cost.
    """
    x0, x1, table = (part.to(device) for part in random_inputs(case, seed))
    matrix = SquaredEmbedding().cost_matrix(x0, x1, table)
    full, name = matrix.full().double(), device.type
    independent = float(full.mean())
    uniform = torch.full((case.n,), 1 / case.n, dtype=torch.float64, device=device)

    def plain() -> Tensor:
        return torch.cdist(table[x1].flatten(1), table[x0].flatten(1)).square_()

    def theirs(dtype: torch.dtype) -> Callable[[], Any]:
        mass, cost = uniform.to(dtype), full.to(dtype)
        return lambda: pot.sinkhorn(mass, mass, cost / cost.max(), EPS, stopThr=TOL)

    def row(solver: str, solve: Callable[[], Any], value: Callable[[Any], tuple[float, float]]) -> SolverSpeed:
        ms, found = _timed(solve, name)
        cost, error = value(found)
        return SolverSpeed(solver, case, name, ms, cost, error, 1 - cost / independent)

    def of_plan(plan: Tensor) -> tuple[float, float]:
        t = plan.double()
        return float((t * full).sum()), float(sum((t.sum(axis) - 1 / case.n).abs().sum() for axis in (0, 1)))

    def ours() -> TransportPlan:
        return sinkhorn(matrix.pairwise.double(), EPS, scale=matrix.max(), tol=TOL)

    return [
        row("hopflow_cost", lambda: SquaredEmbedding().cost_matrix(x0, x1, table), lambda found: (found.mean(), 0.0)),
        row("cdist_float32", plain, lambda found: (float(found.double().mean()), 0.0)),
        row("hopflow_exact", lambda: assignment.assignment(matrix.pairwise), lambda order: (matrix.paid(order), 0.0)),
        row("hopflow_sinkhorn", ours, lambda found: of_plan(found.plan() / case.n)),
        row("pot_sinkhorn", theirs(torch.float64), of_plan),
        row("pot_sinkhorn_float32", theirs(torch.float32), of_plan),
    ]


def cost_matrix(case: SolverCase, seed: int) -> CostMatrix:
    """The cost matrix of a case, as a coupling would pass it to a solver."""
    x0, x1, table = random_inputs(case, seed)
    return Hamming().cost_matrix(x0, x1) if case.width is None else SquaredEmbedding().cost_matrix(x0, x1, table)


def random_inputs(case: SolverCase, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """x0, x1 and an embedding table, of width 0 if the cost needs none."""
    generator = torch.Generator().manual_seed(seed)
    law = torch.ones(case.tokens) if case.tokens < WORDS else 1 / torch.arange(1, case.tokens + 1)
    x0, x1 = torch.multinomial(law, 2 * case.n * case.length, True, generator=generator).view(2, case.n, case.length)
    return x0, x1, torch.randn(case.tokens, case.width or 0, generator=generator)


def _timed(solve: Callable[[], Any], device: str) -> tuple[float, Any]:
    """The median milliseconds of up to REPEATS runs, and the last result."""
    seconds: list[float] = []
    while True:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # POT's warnings on convergence; the marginal error shows it
            started = time.perf_counter()
            found = solve()
            if device == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started)
        if len(seconds) >= REPEATS or sum(seconds) + seconds[-1] > SECONDS:
            return 1000 * statistics.median(seconds), found


def _pot() -> Any:
    try:
        import ot as pot
    except ImportError as error:
        raise ImportError("bench ot compares with POT, which is not installed", name="POT") from error
    return pot
