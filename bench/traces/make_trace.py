#!/usr/bin/env python3
"""Writes a trace as PyTorch's profiler (Kineto) does of a data-parallel job, of any size and reproducible.

    python3 bench/traces/make_trace.py OUT.json --megabytes 300 [--operators 3] [--rank 0] [--seed 1]

Layout, order and arguments are those of Kineto's writer: first the operators of both threads, then calls of CUDA, kernels, copies and
the flows between them; three decimals. A step has a request for a batch, copies to the device, a forward pass, a backward pass in a thread
of its own with all-reduces on a stream of their own, and an optimizer; the lengths come from a few steps drawn by the seed, which
repeat. `--operators` are nested around each launch: with three a kernel stands for some 2 KB, with one for 1.3.
"""

import argparse
import pathlib
import random

PID = 4711
BACKWARD = 4892
COMPUTE, COLLECTIVE = 7, 20

ELEMENTWISE = [
    f"void at::native::{loop}<{width}, at::native::{functor}, at::detail::Array<char*, {arity}> >(int, at::native::{functor}, at::detail::Array<char*, {arity}>)"
    for loop in ("vectorized_elementwise_kernel", "unrolled_elementwise_kernel")
    for width in (2, 4)
    for functor, arity in (
        ("CUDAFunctor_add<c10::BFloat16>", 3),
        ("BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >", 3),
        ("AUnaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >", 2),
        ("GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{lambda()#1}::operator()() const::{lambda(float)#1}", 2),
        ("direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda(float)#1}", 2),
        ("FillFunctor<float>", 1),
    )
]
MATRIX = [
    f"ampere_bf16_s16816gemm_bf16_{tile}_ldg8_f2f_stages_{tile_k}_{layout}"
    for tile in ("64x64", "128x64", "128x128", "256x128")
    for tile_k in ("32x6", "64x3")
    for layout in ("tn", "nn", "nt")
]
NORMS = [
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float, float const*, float const*, float const*, float*, float*, float*)",
    "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<float, float>(float const*, float const*, float const*, float const*, float const*, float*, int)",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>(float*, float const*, int, int, int, bool const*, int, bool)",
]
# A kernel's kind, the operators around its launch from the outermost in, its names.
FORWARD = [
    (("aten::linear", "aten::addmm", "aten::expand"), MATRIX, 40, 400),
    (("aten::layer_norm", "aten::native_layer_norm", "aten::empty"), NORMS, 8, 30),
    (("aten::gelu", "aten::empty_like", "aten::empty_strided"), ELEMENTWISE, 3, 40),
    (("aten::dropout", "aten::native_dropout", "aten::empty_like"), ELEMENTWISE, 3, 40),
    (("aten::add", "aten::to", "aten::_to_copy"), ELEMENTWISE, 2, 20),
]
BACKWARD_OPERATORS = [
    (("autograd::engine::evaluate_function: AddmmBackward0", "AddmmBackward0", "aten::mm"), MATRIX, 40, 500),
    (("autograd::engine::evaluate_function: NativeLayerNormBackward0", "NativeLayerNormBackward0", "aten::native_layer_norm_backward"), NORMS, 10, 50),
    (("autograd::engine::evaluate_function: GeluBackward0", "GeluBackward0", "aten::gelu_backward"), ELEMENTWISE, 4, 50),
    (("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", "torch::autograd::AccumulateGrad", "aten::add_"), ELEMENTWISE, 2, 20),
]
OPTIMIZER = [(("aten::_foreach_mul_", "aten::mul_", "aten::empty"), ELEMENTWISE, 5, 60)]

LAYERS = 24


def slice_text(category: str, name: str, pid: int, tid: int, length: float, arguments: str) -> str:
    quoted = name.replace("%", "%%")
    return (f'  {{\n    "ph": "X", "cat": "{category}", "name": "{quoted}", "pid": {pid}, "tid": {tid},\n    "ts": %d.%03d, "dur": {length:.3f},\n'
            f'    "args": {{\n      {arguments}\n    }}\n  }}')


def flow_text(phase: str, category: str, pid: int, tid: int) -> str:
    end = ', "bp": "e"' if phase == "f" else ""
    return f'  {{\n    "ph": "{phase}", "id": %d, "pid": {pid}, "tid": {tid}, "ts": %d.%03d,\n    "cat": "{category}", "name": "{category}"{end}\n  }}'


class Step:
    """One step as text with holes. A hole is ("t", ns) for the two halves of a time, ("n", k) for the number of the step's k-th launch or
    operator, ("s", 0) for the step's own."""

    def __init__(self, random_: random.Random, operators: int) -> None:
        self.random = random_
        self.depth = operators
        self.host: list[str] = []
        self.host_holes: list[tuple[str, int]] = []
        self.device: list[str] = []
        self.device_holes: list[tuple[str, int]] = []
        self.numbers = 0
        self.kernels = 0
        self.now = 0  # of the host, ns
        self.free = {COMPUTE: 0, COLLECTIVE: 0}
        self.build()
        self.host_text = ",\n".join(self.host)
        self.device_text = ",\n".join(self.device)

    def build(self) -> None:
        begin = self.now
        batch = self.random.randrange(200_000, 900_000)
        self.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", self.now, batch)
        self.now += batch + 20_000
        for _ in range(2):
            self.copy()
        for _ in range(LAYERS):
            for kind in FORWARD:
                self.launch(kind, PID)
        for layer in range(LAYERS):
            for kind in BACKWARD_OPERATORS:
                self.launch(kind, BACKWARD)
            if layer % 4 == 3:
                self.collective()
        optimizer = self.now
        for _ in range(LAYERS):
            self.launch(OPTIMIZER[0], PID)
        self.annotation("Optimizer.step#AdamW.step", optimizer, self.now - optimizer)
        self.wait()
        self.length = self.now - begin + 50_000
        self.host.append(slice_text("user_annotation", "ProfilerStep#@", PID, PID, self.length / 1000, '"External id": %d, "Ev Idx": %d').replace("@", "%d"))
        self.host_holes += [("s", 0), ("t", begin), ("n", 0), ("n", 0)]

    def number(self) -> int:
        self.numbers += 1
        return self.numbers - 1

    def annotation(self, name: str, begin: int, length: int) -> None:
        self.host.append(slice_text("user_annotation", name, PID, PID, length / 1000, '"External id": %d, "Ev Idx": %d'))
        number = self.number()
        self.host_holes += [("t", begin), ("n", number), ("n", number)]

    def operator(self, name: str, thread: int, begin: int, length: int) -> None:
        self.host.append(slice_text("cpu_op", name, PID, thread, length / 1000,
                                    '"External id": %d, "Sequence number": %d, "Fwd thread id": 0, "Record function id": 0, "Ev Idx": %d'))
        number = self.number()
        self.host_holes += [("t", begin), ("n", number), ("n", number), ("n", number)]

    def call(self, name: str, code: int, thread: int, begin: int, length: int, number: int, starts: bool = True) -> None:
        self.device.append(slice_text("cuda_runtime", name, PID, thread, length / 1000, f'"External id": %d,\n      "cbid": {code}, "correlation": %d'))
        self.device_holes += [("t", begin), ("n", number), ("n", number)]
        if starts:
            self.device.append(flow_text("s", "ac2g", PID, thread))
            self.device_holes += [("n", number), ("t", begin)]

    def work(self, category: str, name: str, stream: int, begin: int, length: int, number: int, more: str) -> None:
        self.device.append(slice_text(category, name, 0, stream, length / 1000,
                                      f'"External id": %d,\n      "device": 0, "context": 1,\n      "stream": {stream}, "correlation": %d,\n      {more}'))
        self.device_holes += [("t", begin), ("n", number), ("n", number)]
        self.device.append(flow_text("f", "ac2g", 0, stream))
        self.device_holes += [("n", number), ("t", begin)]
        self.kernels += 1

    def begin_on(self, stream: int, after: int, length: int) -> int:
        begin = max(self.free[stream] + self.random.randrange(900, 1800), after + self.random.randrange(2_500, 6_000))
        self.free[stream] = begin + length
        return begin

    def launch(self, kind: tuple, thread: int) -> None:
        operators, kernels, shortest, longest = kind
        lengths = sorted((self.random.randrange(6_000, 22_000) + 4_000 * k for k in range(self.depth)), reverse=True)
        begin = self.now
        for k in range(self.depth):
            self.operator(operators[min(k, len(operators) - 1)], thread, begin + 900 * k, max(lengths[k] - 1_800 * k, 5_500))
        call = begin + 900 * self.depth
        host = self.random.randrange(3_500, 5_000)
        number = self.number()
        self.call("cudaLaunchKernel", 211, thread, call, host, number)
        length = self.random.randrange(shortest * 1000, longest * 1000)
        blocks = self.random.randrange(1, 4096)
        self.work("kernel", self.random.choice(kernels), COMPUTE, self.begin_on(COMPUTE, call, length), length, number,
                  f'"registers per thread": {self.random.randrange(16, 256)},\n      "shared memory": {1024 * self.random.randrange(64)},\n      '
                  f'"blocks per SM": {blocks / 108:.6f},\n      "warps per SM": {blocks * 8 / 108:.6f},\n      "grid": [{blocks}, 1, 1],\n      '
                  f'"block": [256, 1, 1],\n      "est. achieved occupancy %%": {self.random.randrange(100)}')
        self.now = begin + max(lengths) + self.random.randrange(1_000, 6_000)

    def copy(self) -> None:
        number = self.number()
        self.operator("aten::copy_", PID, self.now, 30_000)
        self.call("cudaMemcpyAsync", 41, PID, self.now + 8_000, 12_000, number)
        length = self.random.randrange(20_000, 200_000)
        size = length * 12
        self.work("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", COMPUTE, self.begin_on(COMPUTE, self.now + 8_000, length), length, number,
                  f'"bytes": {size}, "memory bandwidth (GB/s)": 12.000000')
        self.now += 36_000

    def collective(self) -> None:
        number = self.number()
        self.operator("nccl:all_reduce", BACKWARD, self.now, 28_000)
        self.call("cudaLaunchKernelExC", 430, BACKWARD, self.now + 9_000, 7_000, number)
        length = self.random.randrange(600_000, 1_400_000)
        self.work("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)", COLLECTIVE,
                  self.begin_on(COLLECTIVE, self.now + 9_000, length), length, number,
                  '"registers per thread": 96,\n      "shared memory": 0,\n      "grid": [24, 1, 1],\n      "block": [544, 1, 1],\n      '
                  '"Collective name": "allreduce", "In msg nelems": 16777216, "Out msg nelems": 16777216, "Group size": 8, "dtype": "BFloat16",\n      '
                  '"Process Group Name": "0", "Process Group Description": "default_pg", "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"')
        self.now += 34_000

    def wait(self) -> None:
        done = max(self.free.values())
        begin = self.now + 3_000
        length = max(done - begin, 0) + 5_000
        self.call("cudaDeviceSynchronize", 165, PID, begin, length, self.number(), starts=False)
        self.now = begin + length + 10_000


def fill(text: str, holes: list[tuple[str, int]], number: int, time: int, first: int) -> str:
    values: list[int] = []
    for kind, value in holes:
        if kind == "t":
            values += divmod(time + value, 1000)
        else:
            values.append(first + value if kind == "n" else number)
    return text % tuple(values)


def write_trace(path: pathlib.Path, size: int, operators: int = 3, rank: int = 0, seed: int = 1) -> dict[str, int]:
    """Steps until the file has about `size` bytes. Returns how many steps, device events and launches it has."""
    random_ = random.Random(seed)
    shapes = [Step(random_, operators) for _ in range(4)]
    typical = sum(len(s.host_text) + len(s.device_text) + 4 * len(s.host_holes) + 4 * len(s.device_holes) for s in shapes) / len(shapes)
    steps = max(3, round(size / typical))
    begins, first = [], []
    now, number = 5_000_000_000, 1_000
    for k in range(steps):
        begins.append(now)
        first.append(number)
        now += shapes[k % len(shapes)].length
        number += shapes[k % len(shapes)].numbers
    with path.open("w", buffering=1 << 20) as out:
        out.write('{\n  "schemaVersion": 1,\n  "deviceProperties": [\n    {\n      "id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85899345920\n    }\n  ],\n'
                  f'  "distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": 1000}},\n  "baseTimeNanoseconds": 1752000000000000000,\n'
                  '  "traceEvents": [\n')
        for tid, name in ((PID, "thread 4711 (python)"), (BACKWARD, "thread 4892 (pt_autograd_0)")):
            out.write(f'  {{\n    "name": "thread_name", "ph": "M", "ts": 5000000.000, "pid": {PID}, "tid": {tid},\n    "args": {{\n      "name": "{name}"\n    }}\n  }},\n')
        for part in ("host", "device"):
            for k in range(steps):
                shape = shapes[k % len(shapes)]
                text, holes = (shape.host_text, shape.host_holes) if part == "host" else (shape.device_text, shape.device_holes)
                out.write(fill(text, holes, k, begins[k], first[k]))
                out.write("\n  ]\n}\n" if part == "device" and k == steps - 1 else ",\n")
    events = sum(shapes[k % len(shapes)].kernels for k in range(steps))
    return {"steps": steps, "device_events": events, "launches": events + steps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--megabytes", type=float, default=300)
    parser.add_argument("--operators", type=int, default=3)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    print(write_trace(a.out, int(a.megabytes * 1e6), a.operators, a.rank, a.seed))


if __name__ == "__main__":
    main()
