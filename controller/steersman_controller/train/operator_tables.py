"""Seconds of a forward composed of measured operator times.

Reads a folder of operator tables in the form of the AIConfigurator project, one operator a file, times in
`latency_ms`, all bfloat16 here: ``*DEVICE*_gemm.csv`` (`m, n, k`), ``*_decode_attention.csv`` and
``*_prefill_attention.csv`` (`batch_size, isl, step, num_heads, num_key_value_heads`, one layer),
``*_allreduce.csv`` (`num_gpus, message_size` in elements), and for models with experts ``*_moe*.csv``
(`num_tokens, hidden_size, inter_size, topk, num_experts, moe_tp_size`). The last holds the routed experts of
one layer, so the union of those that a batch visits is in it; the mean over all distributions is taken.
Element-wise kernels are not in such tables: they are priced by bytes over bandwidth. Host time is not in it.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from steersman_controller.train.cells import Floats
from steersman_controller.train.devices import BANDWIDTH_SHARE, LAUNCH_S, Device
from steersman_controller.train.model_shape import ModelShape
from steersman_controller.train.roofline import ACTIVATION_BYTES
from steersman_controller.train.table_file import TableFile, database, identifier

ELEMENTWISE_PER_LAYER = 4
"""Two norms with the residual, activation, rotary embedding with the cache write."""

_DTYPE = "bfloat16"
_MOE = ("hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "num_tokens", "latency_ms")


class Curve:
    """Times over one size, linear between points on logarithmic axes, extended by its end slopes."""

    def __init__(self, points: Mapping[float, float]) -> None:
        self._x = [float(np.log(max(x, 1.0))) for x in sorted(points)]
        self._y = [float(np.log(points[x])) for x in sorted(points)]

    def at(self, size: float) -> float:
        """The time at `size`."""
        if len(self._x) == 1:
            return float(np.exp(self._y[0]))
        x = float(np.log(max(size, 1.0)))
        right = min(max(bisect_left(self._x, x), 1), len(self._x) - 1)
        left = right - 1
        slope = (self._y[right] - self._y[left]) / (self._x[right] - self._x[left])
        return float(np.exp(self._y[left] + slope * (x - self._x[left])))


class OperatorTables:
    """The tables of one device. Raises ValueError in one line where a file or a size is missing."""

    def __init__(self, folder: Path, device: str) -> None:
        if not folder.is_dir():
            raise ValueError(f"--operators: no folder {folder}")
        self.folder, self.device = folder, device
        self.files: list[str] = []
        gemm = self._read("gemm", ("m", "n", "k", "latency_ms"), f"gemm_dtype = '{_DTYPE}'")
        self._gemm: dict[tuple[int, int], Curve] = _curves(gemm, 1, 2, at=0)
        self._widths = sorted({n for n, _ in self._gemm}), sorted({k for _, k in self._gemm})
        self._decode = self._attention("decode_attention")
        self._prefill = self._attention("prefill_attention")
        reduce = self._read("allreduce", ("num_gpus", "message_size", "latency_ms"), "backend = 'vllm_graph'")
        self._experts: dict[tuple[int, ...], Curve] = {}
        self._allreduce = {
            ways: Curve(_mean(reduce, {0: ways}, 1)) for ways in {int(x) for x in reduce[:, 0]}
        }

    def gemm_s(self, m: float, n: float, k: float) -> float:
        """An m x k times k x n product; between tabulated widths on logarithmic axes."""
        (n0, n1), (k0, k1) = _around(self._widths[0], n), _around(self._widths[1], k)

        def at(width: int) -> float:
            return _between(k0, k1, k, self._gemm[width, k0].at(m), self._gemm[width, k1].at(m))

        return _between(n0, n1, n, at(n0), at(n1)) / 1e3

    def decode_attention_s(self, batch: float, context: float, heads: int, kv_heads: int) -> float:
        """One layer, one query token a request, `context` tokens each."""
        curves = self._of(self._decode, heads, kv_heads, "decode attention")
        return Curve({size: curve.at(context) for size, curve in curves.items()}).at(batch) / 1e3

    def prefill_attention_s(self, tokens: float, heads: int, kv_heads: int) -> float:
        """One layer, one prompt of `tokens`."""
        curves = self._of(self._prefill, heads, kv_heads, "prefill attention")
        return curves[min(curves)].at(tokens) / 1e3

    def allreduce_s(self, elements: float, ways: int) -> float:
        """Inside a CUDA graph."""
        if ways not in self._allreduce:
            raise ValueError(f"{self.folder}: no allreduce over {ways}, it has {sorted(self._allreduce)}")
        return self._allreduce[ways].at(elements) / 1e3

    def experts_s(self, tokens: float, shape: ModelShape, ways: int) -> float:
        """The routed experts of one layer, for `tokens` tokens."""
        key = (shape.hidden, shape.expert_intermediate, shape.experts_per_token, shape.experts, ways)
        if key not in self._experts:
            rows = self._read("moe", _MOE, f"moe_dtype = '{_DTYPE}' and moe_ep_size = '1'", exact=False)
            sizes = {tuple(int(size) for size in row[:5]) for row in rows}
            if key not in sizes:
                raise ValueError(
                    f"{self.folder}: no experts of hidden, intermediate, per token, in all and ways {key}, "
                    f"it has {', '.join(map(str, sorted(sizes)))}"
                )
            mine = rows[(rows[:, :5] == np.array(key)).all(axis=1)][:, 5:]
            self._experts[key] = Curve(_mean(mine, {}, 0))
        return self._experts[key].at(tokens) / 1e3

    def _attention(self, name: str) -> dict[tuple[int, int], dict[float, Curve]]:
        rows = self._read(
            name,
            ("num_heads", "num_key_value_heads", "batch_size", "isl + step", "latency_ms"),
            f"kv_cache_dtype = '{_DTYPE}'",
        )
        found: dict[tuple[int, int], dict[float, Curve]] = {}
        for heads, kv_heads in {(int(row[0]), int(row[1])) for row in rows}:
            mine = rows[(rows[:, 0] == heads) & (rows[:, 1] == kv_heads)][:, 2:]
            sizes = sorted({float(size) for size in mine[:, 0]})
            found[heads, kv_heads] = {size: Curve(_mean(mine, {0: size}, 1)) for size in sizes}
        return found

    def _of(
        self, tables: Mapping[tuple[int, int], dict[float, Curve]], heads: int, kv_heads: int, name: str
    ) -> dict[float, Curve]:
        """The table for these heads, else for the fewest more heads that read the same cache."""
        fitting = [key for key in sorted(tables) if key[0] >= heads and key[1] == kv_heads]
        if fitting:
            return tables[fitting[0]]
        raise ValueError(
            f"{self.folder}: no {name} with {heads} heads and {kv_heads} key-value heads, "
            f"it has {', '.join(f'{h}/{kv}' for h, kv in sorted(tables))}"
        )

    def _read(self, name: str, columns: Sequence[str], condition: str, *, exact: bool = True) -> Floats:
        """Numbers of the newest file; not `exact`: whose name may go on."""
        stems = {path: path.name.split(".csv")[0] for path in self.folder.iterdir() if ".csv" in path.name}
        files = sorted(
            path
            for path, stem in stems.items()
            if self.device in stem and (stem.endswith(f"_{name}") or (not exact and f"_{name}_" in stem))
        )
        if not files:
            raise ValueError(f"{self.folder}: no file *{self.device}*_{name}.csv")
        file = TableFile(files[-1])
        self.files.append(files[-1].name)
        shown = ", ".join(_number(column, file) for column in columns)
        with database() as connection:
            file.run(
                connection, f"create temp table found as select {shown} from {file.scan} where {condition}"
            )
            rows = connection.execute("select * from found").fetchall()
        table = np.array(rows, dtype=np.float64).reshape(len(rows), len(columns))
        if not len(table) or not np.isfinite(table).all():
            raise ValueError(f"{files[-1]}: no rows with {condition}, or a value that is no number")
        return table


class ComposedForward:
    """One forward of one model. See `roofline.Forward`."""

    def __init__(
        self, tables: OperatorTables, shape: ModelShape, device: Device, tensor_parallel: int = 1
    ) -> None:
        if shape.latent:
            raise ValueError("--operators: only models with one cache per key-value head can be composed")
        if shape.heads % tensor_parallel:
            raise ValueError(f"--tensor-parallel: {tensor_parallel} does not divide {shape.heads} heads")
        self.tables, self.shape, self.device, self.ways = tables, shape, device, tensor_parallel
        if shape.experts:
            tables.experts_s(1.0, shape, tensor_parallel)  # a missing table is said now

    def seconds(
        self, *, tokens: float, sequences: float, context_tokens: float, prefill_tokens: float
    ) -> float:
        """See `Forward`."""
        return (
            self.dense_s(tokens, tokens - prefill_tokens)
            + self.decode_attention_s(sequences, context_tokens)
            + self.prompt_attention_s(prefill_tokens)
        )

    def dense_s(self, tokens: float, heads: float) -> float:
        """See `Forward`."""
        shape, ways = self.shape, self.ways
        width = shape.heads // ways * shape.head_dim
        layer = (
            self.tables.gemm_s(tokens, width + 2 * self._kv_heads * shape.head_dim, shape.hidden)
            + self.tables.gemm_s(tokens, shape.hidden, width)
            + self._elementwise_s(tokens)
        )
        if ways > 1:
            layer += 2.0 * self.tables.allreduce_s(tokens * shape.hidden, ways)
        head = self.tables.gemm_s(max(heads, 1.0), shape.vocabulary / ways, shape.hidden)
        dense = shape.dense_layers
        mlps = dense * self._mlp_s(tokens, shape.intermediate) if dense else 0.0
        if shape.layers > dense:
            mlps += (shape.layers - dense) * self._routed_s(tokens)
        return shape.layers * layer + mlps + head

    def decode_attention_s(self, sequences: float, context_tokens: float) -> float:
        """See `Forward`."""
        if not sequences:
            return 0.0
        heads = self.shape.heads // self.ways
        one = self.tables.decode_attention_s(sequences, context_tokens / sequences, heads, self._kv_heads)
        return self.shape.layers * one

    def prompt_attention_s(self, tokens: float) -> float:
        """See `Forward`."""
        if not tokens:
            return 0.0
        heads = self.shape.heads // self.ways
        return self.shape.layers * self.tables.prefill_attention_s(tokens, heads, self._kv_heads)

    @property
    def _kv_heads(self) -> int:
        return max(self.shape.kv_heads // self.ways, 1)

    def _mlp_s(self, tokens: float, intermediate: float) -> float:
        """A gated MLP of every token."""
        hidden, width = self.shape.hidden, intermediate / self.ways
        return self.tables.gemm_s(tokens, 2 * width, hidden) + self.tables.gemm_s(tokens, hidden, width)

    def _routed_s(self, tokens: float) -> float:
        """Router, routed experts, and those that every token visits."""
        shape = self.shape
        shared_s = self._mlp_s(tokens, shape.shared_intermediate) if shape.shared_intermediate else 0.0
        router_s = self.tables.gemm_s(tokens, shape.experts, shape.hidden)
        return router_s + self.tables.experts_s(tokens, shape, self.ways) + shared_s

    def _elementwise_s(self, tokens: float) -> float:
        # The activation of routed experts is in their own times.
        dense_share = self.shape.dense_layers / self.shape.layers
        width = 8.0 * self.shape.hidden + 3.0 * dense_share * self.shape.intermediate / self.ways
        moved = width * tokens * ACTIVATION_BYTES
        return ELEMENTWISE_PER_LAYER * LAUNCH_S + moved / (self.device.bytes_per_s * BANDWIDTH_SHARE)


def _curves(rows: Floats, *keys: int, at: int) -> dict[tuple[int, int], Curve]:
    points: dict[tuple[int, int], dict[float, float]] = {}
    for row in rows:
        points.setdefault((int(row[keys[0]]), int(row[keys[1]])), {})[float(row[at])] = float(row[-1])
    return {key: Curve(found) for key, found in points.items()}


def _mean(rows: Floats, where: Mapping[int, float], at: int) -> dict[float, float]:
    mine = rows
    for column, value in where.items():
        mine = mine[mine[:, column] == value]
    return {float(x): float(mine[mine[:, at] == x][:, -1].mean()) for x in np.unique(mine[:, at])}


def _around(sizes: list[int], size: float) -> tuple[int, int]:
    """Two tabulated sizes that enclose `size`, or the two nearest ones."""
    right = min(max(bisect_left(sizes, size), 1), len(sizes) - 1)
    return sizes[right - 1], sizes[right]


def _between(low: float, high: float, at: float, low_s: float, high_s: float) -> float:
    part = (np.log(at) - np.log(low)) / (np.log(high) - np.log(low))
    return float(np.exp((1.0 - part) * np.log(low_s) + part * np.log(high_s)))


def _number(column: str, file: TableFile) -> str:
    names = [file.column(name, "--operators") for name in column.split(" + ")]
    return " + ".join(f"try_cast({identifier(name)} as double)" for name in names)
