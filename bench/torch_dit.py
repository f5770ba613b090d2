#!/usr/bin/env python3
"""The toy DiT of examples/dit_bench in PyTorch: the same blocks, sizes, initialisation and report.

Needs torch and a CUDA device; TransformerEngine and torchao take part where they can be imported.

    bench/torch_dit.py --variant bf16 --mode forward --case 8x1024 --json out.json

One process runs one variant over one or more cases, so that no variant's memory or compiled code is
another's. A time is reported only where output, loss and gradients were finite.
"""
import argparse
import json
import statistics
import sys
import time

VARIANTS = {
    "bf16": "bf16 eager; training: autocast, AdamW(fused)",
    "bf16-graph": "the same as one CUDA graph a shape; training: the whole step",
    "bf16-compiled": "the same, its blocks compiled with dynamic shapes",
    "bf16-compiled-graph": "the same, compiled, one CUDA graph a shape",
    "scaled-mm": "FP8 over torch._scaled_mm, static scales, no amax, eager",
    "scaled-mm-compiled": "the same, its blocks compiled with dynamic shapes",
    "scaled-mm-graph": "the same, compiled, one CUDA graph a shape; training: the whole step",
    "te": "TransformerEngine's te.Linear, delayed scaling; forward: weights quantized once a call",
    "te-graph": "the same as one CUDA graph a shape; training: the whole step",
    "torchao": "torchao.float8, tensorwise dynamic scales, compiled",
}
ASPECTS = "16x16 12x20 20x12 14x18 18x14 10x24 24x10 11x22 22x11 13x19 19x13 15x17"

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--variant", required=True, choices=sorted(VARIANTS))
parser.add_argument("--mode", choices=["forward", "train"], default="forward")
parser.add_argument("--case", action="append", metavar="BxS", help="batch x sequence; repeatable")
parser.add_argument("--hidden_size", type=int, default=2048)
parser.add_argument("--depth", type=int, default=32)
parser.add_argument("--mlp_ratio", type=int, default=4)
parser.add_argument("--iters", type=int, default=20)
parser.add_argument("--warmup", type=int, default=5)
parser.add_argument("--dynamic", action="store_true", help="shuffle the aspect ratios: " + ASPECTS)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--json", metavar="FILE")
args = parser.parse_args()

import torch  # noqa: E402
from torch import nn  # noqa: E402

if not torch.cuda.is_available():
    sys.exit("torch_dit.py: torch finds no CUDA device")
device = torch.device("cuda")
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2

# ---- Linears -----------------------------------------------------------


class ScaledMatmul(torch.autograd.Function):
    """Y = X . W^T + b with static scales: E4M3 for X and W, E5M2 for dY."""

    @staticmethod
    def forward(ctx, x, weight, bias, scales):
        shape = x.shape
        x8 = cast(x.reshape(-1, shape[-1]), scales[0], E4M3)
        w8 = weight if weight.dtype == E4M3 else cast(weight, scales[1], E4M3)
        y = torch._scaled_mm(
            x8,
            w8.t(),
            1 / scales[0],
            1 / scales[1],
            bias,
            out_dtype=torch.bfloat16,
            use_fast_accum=True)
        ctx.save_for_backward(x8, w8, scales)
        ctx.has_bias = bias is not None
        return y.view(*shape[:-1], -1)

    @staticmethod
    def backward(ctx, dy):
        x8, w8, scales = ctx.saved_tensors
        flat = dy.reshape(-1, dy.shape[-1])
        dy8 = cast(flat, scales[2], E5M2)
        dx = torch._scaled_mm(dy8, w8.t().contiguous().t(), 1 / scales[2], 1 / scales[1],
                              out_dtype=torch.bfloat16)
        dw = torch._scaled_mm(dy8.t().contiguous(), x8.t().contiguous().t(), 1 / scales[2],
                              1 / scales[0], out_dtype=torch.bfloat16)
        db = flat.sum(0) if ctx.has_bias else None
        return dx.view(*dy.shape[:-1], -1), dw.float(), db, None


def cast(x, scale, dtype):
    largest = torch.finfo(dtype).max
    return (x.float() * scale).clamp(-largest, largest).to(dtype)


class ScaledLinear(nn.Module):
    def __init__(self, inputs, outputs, bias=True):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, device=device))
        self.bias = nn.Parameter(torch.empty(outputs, device=device)) if bias else None
        # For X and W of about 1 and 1 / sqrt(inputs), and the loss' gradients in mean reduction.
        self.register_buffer("scales", torch.tensor([16.0, 448.0 * inputs**0.5, 2.0**32],
                                                    device=device))

    def freeze(self):
        """For inference: the weight in FP8 alone."""
        self.weight = nn.Parameter(
            cast(
                self.weight.data,
                self.scales[1],
                E4M3),
            requires_grad=False)

    def forward(self, x):
        bias = None if self.bias is None else self.bias.to(torch.bfloat16)
        return ScaledMatmul.apply(x, self.weight, bias, self.scales)


def make_linear():
    if args.variant.startswith("scaled-mm"):
        return lambda i, o, bias=True: ScaledLinear(i, o, bias)
    dtype = torch.bfloat16 if args.mode == "forward" else torch.float32
    if args.variant.startswith("te"):
        import transformer_engine.pytorch as te
        return lambda i, o, bias=True: te.Linear(i, o, bias=bias, params_dtype=dtype, device=device)
    return lambda i, o, bias=True: nn.Linear(i, o, bias=bias, device=device, dtype=dtype)


# ---- The model ---------------------------------------------------------


class Block(nn.Module):
    def __init__(self, h, ratio, linear):
        super().__init__()
        self.timestep_modulation = linear(h, 6 * h)
        self.self_attn = linear(h, 3 * h, bias=False)
        self.cross_attn_q = linear(h, h, bias=False)
        self.cross_attn_kv = linear(h, 2 * h, bias=False)
        self.mlp = nn.Sequential(linear(h, ratio * h), linear(ratio * h, h))

    def forward(self, x):
        shift, scale = self.timestep_modulation(x).chunk(6, -1)[:2]
        x = shift * x / scale
        x = x + self.self_attn(x).chunk(3, -1)[0]
        q = self.cross_attn_q(x)
        k = self.cross_attn_kv(x).chunk(2, -1)[0]
        x = x + q + k
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        linear = make_linear()
        h = args.hidden_size
        self.blocks = nn.ModuleList(Block(h, args.mlp_ratio, linear) for _ in range(args.depth))
        generator = torch.Generator(device).manual_seed(args.seed)
        for block in self.blocks:
            for name, module in block.named_modules():
                if getattr(module, "weight", None) is None:
                    continue
                outputs, inputs = module.weight.shape
                gain = 0.05 if name == "timestep_modulation" else 1.0 if name == "mlp.0" else 0.3
                value = torch.rand(outputs, inputs, device=device, generator=generator)
                with torch.no_grad():
                    module.weight.copy_((2 * value - 1) * gain / inputs**0.5)
                    bias = getattr(module, "bias", None)
                    if bias is not None and bias.numel():
                        bias.fill_(1.0 if name == "timestep_modulation" else 0.0)
        if args.mode == "forward":
            for module in self.modules():
                if isinstance(module, ScaledLinear):
                    module.freeze()

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


# ---- Runs --------------------------------------------------------------


class Runner:
    """One iteration over an input of any shape."""

    def __init__(self):
        self.model = Model()
        if args.variant == "torchao":
            from torchao.float8 import convert_to_float8_training
            convert_to_float8_training(self.model)
        if "compiled" in args.variant or args.variant in ("scaled-mm-graph", "torchao"):
            for block in self.model.blocks:
                block.compile(dynamic="graph" not in args.variant)
        self.graphs = {}
        self.train = args.mode == "train"
        if self.train:
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True,
                                               capturable="graph" in args.variant)

    def forward(self, x):
        if args.variant.startswith("te"):
            import transformer_engine.pytorch as te
            from transformer_engine.common.recipe import DelayedScaling, Format
            recipe = DelayedScaling(fp8_format=Format.HYBRID, amax_history_len=16,
                                    amax_compute_algo="max")
            with te.fp8_autocast(enabled=True, fp8_recipe=recipe):
                return self.model(x)
        return self.model(x)

    def step(self, x, target):
        if not self.train:
            with torch.no_grad():
                return self.forward(x), None
        # Scaled linears cast by themselves; what lies between is bf16 in both.
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = self.forward(x)
            loss = nn.functional.mse_loss(y.float(), target.float())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return y, loss

    def __call__(self, x, target):
        if "graph" not in args.variant:
            return self.step(x, target)
        key = tuple(x.shape)
        if key not in self.graphs:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            static = [x.clone(), target.clone()]
            with torch.cuda.stream(stream):
                for _ in range(3):
                    self.step(*static)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = self.step(*static)
            self.graphs[key] = (graph, static, out)
        graph, static, out = self.graphs[key]
        static[0].copy_(x)
        static[1].copy_(target)
        graph.replay()
        return out

    def finite(self, y, loss):
        """Of the latest iteration, and of the weights that it left."""
        values = [y] + ([loss] if loss is not None else [])
        if self.train:
            values += [p for p in self.model.parameters() if p.dtype == torch.float32]
        return all(bool(torch.isfinite(v.float()).all()) for v in values)


def shapes(batch, seq):
    if not args.dynamic:
        return [(batch, seq)] * (args.warmup + args.iters)
    aspects = [tuple(map(int, a.split("x"))) for a in ASPECTS.split()]
    generator = torch.Generator().manual_seed(args.seed)
    picks = torch.randint(len(aspects), (args.warmup + args.iters,), generator=generator)
    return [(batch, aspects[p][0] * aspects[p][1]) for p in picks.tolist()]


def run(runner, batch, seq, opened):
    dtype = torch.bfloat16
    order = shapes(batch, seq)
    longest = max(s for _, s in order)
    pool = torch.rand(
        batch,
        longest,
        args.hidden_size,
        device=device,
        dtype=torch.float32).to(dtype)
    goal = torch.rand(
        batch,
        longest,
        args.hidden_size,
        device=device,
        dtype=torch.float32).to(dtype)
    torch.cuda.reset_peak_memory_stats()
    events, cpu, first, out = [], [], None, None
    for i, (b, s) in enumerate(order):
        x, target = pool[:, :s].contiguous(), goal[:, :s].contiguous()
        if i == args.warmup:
            torch.cuda.synchronize()
            wall = time.perf_counter()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began = time.thread_time()
        start.record()
        out = runner(x, target)
        end.record()
        cpu.append(time.thread_time() - began)
        events.append((start, end))
        if first is None:
            torch.cuda.synchronize()
            first = time.perf_counter() - opened
    torch.cuda.synchronize()
    wall = (time.perf_counter() - wall) * 1e3 / args.iters
    finite = runner.finite(*out)
    times = [start.elapsed_time(end) for start, end in events[args.warmup:]]
    result = {
        "program": "torch_dit.py", "variant": args.variant, "what": VARIANTS[args.variant],
        "mode": args.mode, "case": f"{batch}x{seq}" + (" dynamic" if args.dynamic else ""),
        "batch_size": batch, "seq_length": seq, "hidden_size": args.hidden_size,
        "depth": args.depth, "mlp_ratio": args.mlp_ratio, "iters": args.iters, "finite": finite,
        "card": torch.cuda.get_device_name(), "torch": torch.__version__,
        "cuda": torch.version.cuda, "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(sys.argv),
    }
    if finite:
        result.update({
            "ms_mean": wall, "ms_median": statistics.median(times),
            "caller_cpu_ms": 1e3 * sum(cpu[args.warmup:]) / args.iters, "first_ms": 1e3 * first,
            "memory_bytes": torch.cuda.max_memory_allocated(),
        })
        if out[1] is not None:
            result["loss"] = float(out[1].detach())
    return result


def main():
    opened = time.perf_counter()
    runner = Runner()
    results = []
    for case in args.case or ["8x1024"]:
        batch, seq = map(int, case.split("x"))
        results.append(run(runner, batch, seq, opened))
        r = results[-1]
        text = (f"{r['ms_mean']:.2f} ms mean, {r['ms_median']:.2f} median, "
                f"{r['caller_cpu_ms']:.2f} ms of the caller's CPU, "
                f"{r['memory_bytes'] / 2**30:.1f} GiB" if r["finite"] else "not finite: no time")
        print(f"{args.variant} {args.mode} {r['case']}: {text}", flush=True)
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"rows": results}, file, indent=1)
            file.write("\n")


main()
