"""The units of a run, the most important first."""

import dataclasses
import json
import os
import pathlib
import shlex
import sys

import machine
from units import Failed, NotRun, Unit

HERE = pathlib.Path(__file__).resolve().parent
CURVES = HERE.parent / "curves"
sys.path.insert(0, str(CURVES))

import compare_curves  # noqa: E402
import protocols  # noqa: E402

TORCH_ARCH = {"resnet50-v1.5": "resnet50", "resnet18": "resnet18",
              "vgg16": "vgg16"}
TORCH_SEEDS, FUSOR_SEEDS = 5, 3
SANITIZERS = ("memcheck", "racecheck", "synccheck", "initcheck")


@dataclasses.dataclass(frozen=True)
class Scale:
    """Sizes for a GPU, or for a rehearsal without one."""
    arch: str = "resnet50-v1.5"
    batches: tuple = (256, 128, 64)  # the headline is the first
    image_size: int = 224
    classes: int = 1000
    warmup: int = 20
    iterations: int = 60
    dtypes: tuple = ("fp16", "bf16", "fp32")  # the headline is the first
    rounds: int = 3
    seeds: int = 5
    small_arch: str = "resnet18"  # if any model will do
    step_batch: int = 16
    step_arch: tuple = ("resnet18", "resnet50-v1.5")
    isolated: tuple = (("resnet18", 4, 32), ("resnet50-v1.5", 2, 64),
                       ("vgg16-bn", 2, 32))
    isolate_parts: int = 4  # of the measured step
    vgg_batch: int = 128
    # Models of torchvision that are exported from PyTorch.
    imported: tuple = ("vit_b_16", "swin_t", "efficientnet_b0", "mobilenet_v2",
                       "convnext_tiny", "densenet121", "regnet_y_400mf",
                       "resnext50_32x4d")
    imported_batch: int = 128


def rehearsal(beside_torch):
    """Returns the sizes of a rehearsal. The model is small, or torchvision's
    if it is compared with PyTorch."""
    tiny = "resnet20-cifar"
    return Scale(arch="resnet18" if beside_torch else tiny, batches=(4, 2),
                 image_size=32, classes=10, warmup=1, iterations=2,
                 dtypes=("bf16", "fp32"), rounds=2, small_arch=tiny, seeds=3,
                 step_arch=("resnet18",), isolated=((tiny, 2, 32),),
                 isolate_parts=2,
                 vgg_batch=0, imported=("squeezenet1_1",), imported_batch=2)


def kernel_cache(out):
    """Returns the folder of compiled kernels. It is among the results, so that
    the next call need not compile them again."""
    return out / "cache"


def choices_file(out, dtype):
    """Returns the file of autotune results, which is among the results."""
    return out / f"choices-{dtype}"


class Plan:
    """Builds the units. `args` are those of run_gpu.py."""

    def __init__(self, args, scale):
        self.args, self.scale = args, scale
        self.fusor = shlex.split(args.fusor)
        self.on_gpu = args.backend == "cuda"
        self.device = "cuda" if self.on_gpu else "cpu"
        self.scratch = args.scratch
        self.kept = args.out
        self.environment = {"FUSOR_CACHE_DIR": str(kernel_cache(args.out))}
        self.made = 0

    def all(self):
        isolated, steps = self.isolated(), self.first_step()
        speed, classes = self.speed(), self.classes()
        curves = self.curves()
        top = self.scale.dtypes[0]
        real = self.isolated_at_real_sizes()
        units = [*self.smoke(), *self.ladder(), *isolated[:1],
                 *speed["headline"], *speed["peers"][:2], *speed["tuned"],
                 *(u for u in steps if u.name.endswith(top)),
                 *self.same_bits(), *speed["variants"], self.agree(),
                 *classes[:1], *speed["peers"], *self.tests(),
                 *(u for u in isolated if u.name.endswith(top)),
                 *real["default"], *speed["rounds"], *curves[top],
                 *self.memory()[:1],
                 *isolated, *real["lowerings"], *steps, *self.sanitizer(),
                 *(u for dtype in curves for u in curves[dtype]), *classes,
                 *self.memory(), *speed["grid"], *self.imported(),
                 *self.limits()]
        # Keeps the first occurrence of each.
        units = list({unit.name: unit for unit in units}.values())
        if self.on_gpu:
            return units
        # A rehearsal may share its cores with other programs.
        return [dataclasses.replace(unit, most=3000) for unit in units]

    # --- helpers ------------------------------------------------------------

    def folder(self):
        """Returns an unused name in the scratch folder."""
        while True:
            self.made += 1
            place = self.scratch / f"{os.getpid()}-{self.made}"
            if not place.exists():
                return place

    def run_fusor(self, job, command, *flags, accept=(0,), backend=True):
        """Returns the JSON of a fusor command, or None if it has written
        none."""
        path = self.folder().with_suffix(".json")
        place = ["--backend", self.args.backend] if backend else []
        job.run([*self.fusor, command, *place, *flags, "--json", path],
                self.environment, accept)
        if not path.exists():
            return None
        report = json.loads(path.read_text())
        path.unlink()
        return report

    def run_python(self, job, script, *flags, accept=(0,)):
        """Returns the last line of a script's stdout, parsed as JSON."""
        environment = {"PYTHONUNBUFFERED": "1"}
        if not self.on_gpu:  # threads must not spin on shared cores
            environment["OMP_WAIT_POLICY"] = "passive"
        out = job.run([self.args.python, "-B", HERE / script, *flags],
                      environment, accept)
        return json.loads(out.strip().splitlines()[-1])

    def model(self, arch=None, batch=None, size=None):
        s = self.scale
        return ["--arch", arch or s.arch, "-b", batch or s.batches[0],
                "--image-size", size or s.image_size, "--num-classes",
                s.classes]

    def data(self, job):
        """Returns an image folder: that of --data, or samples."""
        if self.args.data:
            return self.args.data
        folder = self.scratch / "samples"
        if not folder.exists():
            job.run([*self.fusor, "data", "make-samples", "--out", folder])
        return folder

    # --- correctness --------------------------------------------------------

    def few_steps(self, dtype):
        return ["train", "--synthetic", "--arch", self.scale.small_arch, "-b",
                4, "--image-size", 32, "--num-classes", 10, "--iterations", 3,
                "--training-only", "--no-checkpoints", "--dtype", dtype]

    def smoke(self):
        def act(job, dtype):
            report = self.run_fusor(job, *self.few_steps(dtype))
            losses = report["losses"]
            if len(losses) != 3 or not all(0 < x < 100 for x in losses):
                raise Failed(f"losses {losses}")
            return {"losses": losses}
        return [Unit(f"smoke/{dtype}", "smoke", 10,
                     lambda job, d=dtype: act(job, d), ("backend",))
                for dtype in self.scale.dtypes]

    def ladder(self):
        """Runs from the whole step down to parts of it and logs all output, so
        that failures of the smoke test can be diagnosed remotely."""
        dtype = self.scale.dtypes[0]
        place = ["--backend", self.args.backend]
        steps = [*self.fusor, *self.few_steps(dtype), *place]
        isolate = [*self.fusor, "isolate", *place, "--arch", "resnet20-cifar",
                   "-b", 2, "--dtype", dtype]

        def act(job, command, environment=None):
            job.run(command, {**self.environment, **(environment or {})},
                    whole=True)
            return {}

        def libraries(job):
            place = self.folder().with_suffix(".log")
            try:
                return act(job, steps, {
                    "CUDNN_LOGLEVEL_DBG": "3", "CUDNN_LOGDEST_DBG": str(place),
                    "CUBLASLT_LOG_LEVEL": "2", "NCCL_DEBUG": "WARN"})
            finally:
                if place.exists():
                    job.run(["tail", "-c", 200_000, place], whole=True)

        rungs = [("doctor", lambda job: act(job, [*self.fusor, "doctor"]), ()),
                 ("without CUDA graph",
                  lambda job: act(job, [*steps, "--cuda-graph", "off"]),
                  ("gpu",)),
                 ("each kernel and call", lambda job: act(job, isolate), ()),
                 ("the libraries' logs", libraries, ()),
                 ("compute-sanitizer", lambda job: act(
                     job, ["compute-sanitizer", "--tool", "memcheck",
                           "--error-exitcode", "99", *isolate]),
                  ("gpu", "sanitizer"))]
        return [Unit(f"ladder/{name}", "ladder", 60, do, ("backend", *needs),
                     if_failed="smoke") for name, do, needs in rungs]

    def isolated(self):
        """Compares every kernel and library call with the interpreter."""
        units = []
        for arch, batch, size in self.scale.isolated:
            for dtype in self.scale.dtypes:
                for more in ([], ["--fusion", "off"], ["--phase", "eval"]):
                    def act(job, case=(arch, batch, size, dtype, more)):
                        return self.isolate(job, *case)
                    name = " ".join([arch, dtype, *more])
                    units.append(Unit(f"isolate/{name}", "isolate", 30, act,
                                      ("backend",), most=300))
        return units

    def isolated_at_real_sizes(self):
        """Returns {"default", "lowerings"}: units that isolate the measured
        step, a part of its kernels and calls each. The interpreter computes
        each element in fp64 on all cores."""
        s = self.scale
        dtype, batch = s.dtypes[0], s.batches[0]

        def parts(name, *more):
            def act(job, part):
                return self.isolate(job, s.arch, batch, s.image_size, dtype,
                                    [*more, "--part", part], s.classes)
            numbers = [f"{i + 1}/{s.isolate_parts}"
                       for i in range(s.isolate_parts)]
            return [Unit(f"isolate/{s.arch} {dtype} {batch}{name} part {part}",
                         "isolate", 140, lambda job, p=part: act(job, p),
                         ("backend",), most=540) for part in numbers]
        lowerings = [name for name, _, needs in self.extra_variants(dtype)
                     if "gpu" in needs and self.on_gpu]
        return {"default": parts(""),
                "lowerings": [u for name in lowerings[-1:]
                              for u in parts(f" {name}", "--bn-lowering",
                                             name.split("=")[1])]}

    def isolate(self, job, arch, batch, size, dtype, more, classes=10):
        report = self.run_fusor(
            job, "isolate", "--arch", arch, "-b", batch, "--image-size", size,
            "--num-classes", classes, "--dtype", dtype, *more, accept=(0, 1))
        steps = report["steps"]
        bad = [s for s in steps if not s["ok"]]
        data = {"target": report["target"], "steps": len(steps),
                "differ": [{k: s[k] for k in ("step", "location", "result",
                                              "error", "tolerance")}
                           for s in bad[:20]]}
        if bad:
            raise Failed(f"{len(bad)} of {len(steps)} kernels and calls differ "
                         f"from the interpreter, worst {bad[0]['step']}", data)
        return data

    def first_step(self):
        def act(job, arch, dtype):
            report = self.run_python(
                job, "first_step.py", "--fusor", self.args.fusor, "--backend",
                self.args.backend, "--device", self.device, "--arch",
                TORCH_ARCH[arch], "--dtype", dtype, "-b", self.scale.step_batch,
                "--seeds", self.scale.seeds, "--folder", self.folder(),
                accept=(0, 1))
            if report["too_far"]:
                raise Failed(
                    f"{len(report['too_far'])} tensors further from fp64 than "
                    f"PyTorch allows, worst {report['worst']['tensor']}",
                    report)
            return report
        return [Unit(f"first step/{arch} {dtype}", "first step", 60,
                     lambda job, a=arch, d=dtype: act(job, a, d),
                     ("backend", "torchvision"), most=400)
                for arch in self.scale.step_arch for dtype in self.scale.dtypes]

    def same_bits(self):
        """Checks what must be bit-identical: a second run, the CUDA graph, a
        program file, and in fp32 fusion with eager rounding."""
        steps = ["--synthetic", "--arch", self.scale.small_arch, "-b", 4,
                 "--image-size", 32, "--num-classes", 10, "--iterations", 5]
        train = [*steps, "--training-only", "--no-checkpoints"]
        dtype = ["--dtype", self.scale.dtypes[0]]

        def twice(job, more):
            hashes = [self.run_fusor(job, "train", *train, *dtype, *flags)[
                "state_hash"] for flags in ([], more)]
            if hashes[0] != hashes[1]:
                raise Failed(f"state {hashes[0]}, then {hashes[1]}")
            return {"state_hash": hashes[0]}

        def program_file(job):
            file = self.folder().with_suffix(".fusor")
            job.run([*self.fusor, "compile", "--backend", self.args.backend,
                     *steps[1:-2], *dtype, "-o", file], self.environment)
            expected = self.run_fusor(job, "train", *train, *dtype)
            got = self.run_fusor(job, "run", file, "--synthetic",
                                 "--iterations", 5, "--training-only",
                                 "--no-checkpoints", backend=False)
            if expected["state_hash"] != got["state_hash"]:
                raise Failed(f"state {expected['state_hash']} of train, "
                             f"{got['state_hash']} of run")
            return {"state_hash": got["state_hash"]}

        def eager(job):
            report = self.run_fusor(
                job, "compare", "--synthetic", *steps[1:-2], "--rounds", 0,
                "--fusion-rounding", "eager")
            numbers = report["comparisons"][0]["numbers"]
            if not numbers["bit_identical"]:
                raise Failed("fusion on and off differ under eager rounding",
                             numbers["summary"])
            return numbers["summary"]

        same = "same bits"
        return [
            Unit(f"{same}/second run", same, 10, lambda job: twice(job, []),
                 ("backend",)),
            Unit(f"{same}/without CUDA graph", same, 10,
                 lambda job: twice(job, ["--cuda-graph", "off"]),
                 ("backend", "gpu")),
            Unit(f"{same}/program file", same, 15, program_file, ("backend",)),
            Unit(f"{same}/fusion on and off", same, 20, eager, ("backend",))]

    def tests(self):
        """Runs the bundle's own tests with its runner."""
        runner = self.args.tests

        def act(job):
            if runner is None:
                raise NotRun("no tests beside fusor")
            out = job.run(["bash", runner], accept=(0, 1))
            line = out.strip().splitlines()[-1]
            if "0 failed" not in line:
                raise Failed(line)
            return {"summary": line}
        return [Unit("tests/bundle", "tests", 60, act, most=400)]

    def sanitizer(self):
        def act(job, tool):
            job.run(["compute-sanitizer", "--tool", tool, "--error-exitcode",
                     "99", *self.fusor, "isolate", "--backend",
                     self.args.backend, "--arch", "resnet20-cifar", "-b", 2,
                     "--dtype", self.scale.dtypes[0], "--tolerance", "1"])
            return {}
        return [Unit(f"sanitizer/{tool}", "sanitizer", 90,
                     lambda job, t=tool: act(job, t),
                     ("backend", "gpu", "sanitizer"), most=500)
                for tool in SANITIZERS]

    def curves(self):
        """Returns {dtype: units}: short runs of fusor and PyTorch, one unit
        per seed. The last unit compares them."""

        def torch_run(job, dtype, seed):
            return self.run_python(
                job, CURVES / "train_torch.py", self.data(job), "--protocol",
                "samples", "--seed", seed, "--layout",
                compare_curves.LAYOUTS[seed % 2], "--dtype", dtype, "--device",
                self.device)

        def fusor_run(job, dtype, seed):
            p = protocols.PROTOCOLS["samples"]
            report = self.run_fusor(
                job, "train", self.data(job), "--arch", p.arch, "--image-size",
                p.image_size, "--train-transform", p.train_transform, "-b",
                p.batch, "--iterations", p.steps, "--epochs", 1000, "--lr",
                p.lr, "--lr-schedule", "cosine", "--warmup-steps",
                p.warmup_steps, "--mom", p.momentum, "--wd", p.weight_decay,
                "--mean", *p.mean, "--std", *p.std, "--dtype", dtype, "--seed",
                seed, "--training-only", "--no-checkpoints",
                *(["--static-loss-scale", 128] if dtype == "fp16" else []))
            return {"losses": report["losses"]}

        def compare(job, dtype):
            runs = {who: {seed: job.machine["state"]["units"].get(
                f"curves/{dtype} {who} {seed}", {}).get("data", {}).get("losses")
                for seed in range(count)}
                for who, count in (("torch", TORCH_SEEDS),
                                   ("fusor", FUSOR_SEEDS))}
            if not all(x for run in runs.values() for x in run.values()):
                raise NotRun("not all runs were made")
            summary = compare_curves.summarise(runs["torch"], runs["fusor"])
            if not summary["inside"]:
                raise Failed(f"mean {summary['mean']:.4f} outside of PyTorch's "
                             f"{summary['low']:.4f} to {summary['high']:.4f}",
                             summary)
            return summary

        return {dtype: [
            *(Unit(f"curves/{dtype} fusor {seed}", "curves", 15,
                   lambda job, d=dtype, s=seed: fusor_run(job, d, s),
                   ("backend",)) for seed in range(FUSOR_SEEDS)),
            *(Unit(f"curves/{dtype} torch {seed}", "curves", 20,
                   lambda job, d=dtype, s=seed: torch_run(job, d, s),
                   ("torchvision",)) for seed in range(TORCH_SEEDS)),
            Unit(f"curves/{dtype} compared", "curves", 0,
                 lambda job, d=dtype: compare(job, d))]
                for dtype in self.scale.dtypes}

    # --- imported models ----------------------------------------------------

    def archive(self, job, name):
        """Returns the path of an exported model of torchvision."""
        folder = self.scratch / "models"
        path = folder / f"{name}.pt2"
        if not path.exists():
            job.run([self.args.python, "-B", HERE / "export_models.py", "--out",
                     folder, "--image-size", self.scale.image_size,
                     *self.scale.imported])
        return path

    def imported(self):
        """Returns units that compare the kernels of exported models with the
        interpreter, and their speed with PyTorch's."""
        s = self.scale
        dtype, batch = s.dtypes[0], s.imported_batch

        def isolate(job, name):
            return self.isolate(job, self.archive(job, name), 2, s.image_size,
                                dtype, [], s.classes)

        def speed(name, variant):
            return (self.torch(variant, batch, dtype, name) if variant else
                    self.bench("fusor", batch, dtype, arch=name,
                               find=self.archive))

        units = [Unit(f"isolate/{name} {dtype}", "imported", 45,
                      lambda job, n=name: isolate(job, n),
                      ("backend", "torchvision"), most=300)
                 for name in s.imported]
        for variant in (None, "graph", "compile-graph"):
            for name in s.imported:
                unit_name, needs, seconds, act = speed(name, variant)
                units.append(Unit(
                    f"speed/{name} {dtype} {batch}/{unit_name}/0", "imported",
                    seconds, act, (*needs, "torchvision"), most=240))
        return units

    # --- speed --------------------------------------------------------------

    def bench(self, name, batch, dtype, flags=(), needs=(), arch=None,
              seconds=15, find=None):
        """Returns a unit that measures fusor. `find` returns the file of a
        model that is not built in."""
        def act(job):
            model = self.model(find(job, arch) if find else arch, batch)
            report = self.run_fusor(
                job, "bench", *model, "--dtype", dtype,
                "--label-smoothing", 0.1, "--warmup", self.scale.warmup,
                "--iterations", self.scale.iterations, *flags,
                *(["--static-loss-scale", 128] if dtype == "fp16" else []))
            return self.speed_data(report, (
                "bytes_moved", "kernels", "library_calls", "compile_seconds",
                "planned_peak_bytes", "choices"))
        return name, ("backend", *needs), seconds, act

    def torch(self, variant, batch, dtype, arch=None):
        def act(job):
            report = self.run_python(
                job, "torch_peer.py", "--variant", variant, "--dtype", dtype,
                "--arch", TORCH_ARCH.get(arch or self.scale.arch, arch), "--device",
                self.device, "-b", batch, "--image-size", self.scale.image_size,
                "--classes", self.scale.classes, "--warmup", self.scale.warmup,
                "--iterations", self.scale.iterations)
            return self.speed_data(report)
        needs = ("torchvision", *(["gpu"] if "graph" in variant else []))
        seconds = {"eager": 35, "graph": 35, "max-autotune": 400}
        return f"torch {variant}", needs, seconds.get(variant, 80), act

    def jax(self, batch, dtype):
        def act(job):
            report = self.run_python(
                job, "jax_peer.py", "--dtype", dtype, "-b", batch,
                "--image-size", self.scale.image_size, "--classes",
                self.scale.classes, "--warmup", self.scale.warmup,
                "--iterations", self.scale.iterations)
            return self.speed_data(report)
        return "jax", ("jax",), 90, act

    @staticmethod
    def speed_data(report, more=()):
        keys = ("images_per_second", "step_ms", "loss", "first_steps_seconds",
                "peak_bytes", "versions", *more)
        data = {k: report[k] for k in keys if k in report}
        if not abs(report["loss"]) < 1e3:
            raise Failed(f"loss {report['loss']} after the steps", data)
        data["clocks"] = machine.clocks()
        return data

    def speed(self):
        """Returns {"headline", "variants", "peers", "rounds", "tuned",
        "grid"}: units that each measure one program once. Round 0 runs fusor,
        its variants and the peers. Each further round runs all programs of a
        cell in a rotated order, so that slow periods affect all alike."""
        s = self.scale
        top, dtype = s.batches[0], s.dtypes[0]
        peers = ["graph", "compile-graph", "eager", "compile"]

        def cell(batch, dtype, rounds, arch=None, fewer=False):
            programs = [self.bench("fusor", batch, dtype, arch=arch)]
            if (batch, dtype) == (top, s.dtypes[0]) and rounds[0] > 0:
                programs += self.with_choices(dtype)
            programs += [self.torch(v, batch, dtype, arch)
                         for v in (["graph", "compile-graph"] if fewer
                                   else peers)]
            if arch is None and s.arch == "resnet50-v1.5":
                programs.append(self.jax(batch, dtype))
            return [self.speed_unit(arch or s.arch, batch, dtype, i, program)
                    for i in rounds
                    for program in programs[i % len(programs):] +
                    programs[:i % len(programs)]]

        def variants(dtype):
            rows = [self.bench("fusor fusion=off", top, dtype,
                               ["--fusion", "off"]),
                    self.bench("fusor without CUDA graph", top, dtype,
                               ["--cuda-graph", "off"], ["gpu"])]
            rows += [self.bench(f"fusor {name}", top, dtype, flags, needs)
                     for name, flags, needs in self.extra_variants(dtype)]
            return [self.speed_unit(s.arch, top, dtype, 0, row) for row in rows]

        grid = []
        for batch in s.batches:
            for other in s.dtypes:
                if (batch, other) != (top, dtype):
                    grid += cell(batch, other, range(1), fewer=True)
        for other in s.dtypes[1:]:
            grid += [*variants(other), *self.tuned(other)]
        if s.vgg_batch:
            grid += cell(s.vgg_batch, dtype, range(1), "vgg16", fewer=True)
        if self.args.max_autotune:
            grid.append(self.speed_unit(
                s.arch, top, dtype, 0, self.torch("max-autotune", top, dtype)))
        headline = cell(top, dtype, range(1))
        return {"headline": headline[:1], "peers": headline[1:],
                "rounds": cell(top, dtype, range(1, s.rounds)),
                "variants": variants(dtype), "tuned": self.tuned(dtype),
                "grid": grid}

    def extra_variants(self, dtype):
        """Returns [(name, flags, needs)] for each lowering of batch
        normalisation. cuDNN fuses parts of it with convolutions only in fp16,
        other libraries never do."""
        own = ("separate", "kernels")
        return [(f"bn-lowering={name}", ["--bn-lowering", name],
                 [] if name in own else ["gpu"])
                for name in self.args.lowerings
                if name in own or dtype == "fp16" or not self.on_gpu]

    def agree(self):
        """Checks that every lowering has nearly the same loss after the same
        steps."""
        cell = (f"speed/{self.scale.arch} {self.scale.dtypes[0]} "
                f"{self.scale.batches[0]}/")

        def act(job):
            losses = {name.split("/")[2]: record["data"]["loss"]
                      for name, record in job.machine["state"]["units"].items()
                      if name.startswith(cell + "fusor")
                      and "loss" in record.get("data", {})}
            if len(losses) < 2:
                raise NotRun("fewer than two were measured")
            low, high = min(losses.values()), max(losses.values())
            if not high <= 1.05 * low:
                raise Failed(f"losses from {low} to {high}", losses)
            return losses
        return Unit(f"agree/losses of {self.scale.dtypes[0]}", "agree", 0, act)

    def tuned(self, dtype):
        """Returns units that tune. The tuner measures some thousand candidates
        in fp16, each for some hundredths of a second. Uses the results of an
        earlier run if there are any."""
        if not (self.on_gpu and self.args.can_tune):
            return []
        s = self.scale
        file = choices_file(self.kept, dtype)
        name, needs, seconds, act = self.bench(
            "fusor tuned", s.batches[0], dtype, ["--tune", "--choices", file],
            ["gpu"], seconds=150)

        def tune(job):
            if file.exists():
                try:
                    return self.bench_tuned(job, dtype)
                except Failed:  # the results are for another library version
                    file.unlink()
            return act(job)
        return [self.speed_unit(s.arch, s.batches[0], dtype, 0,
                                (name, needs, seconds, tune))]

    def bench_tuned(self, job, dtype):
        """Measures fusor with the autotune results of an earlier unit or run."""
        file = choices_file(self.kept, dtype)
        if not file.exists():
            raise NotRun("not tuned yet")
        *_, act = self.bench("", self.scale.batches[0], dtype,
                             ["--choices", file])
        return act(job)

    def with_choices(self, dtype):
        if not (self.on_gpu and self.args.can_tune):
            return []
        return [("fusor tuned", ("backend", "gpu"), 15,
                 lambda job: self.bench_tuned(job, dtype))]

    @staticmethod
    def speed_unit(arch, batch, dtype, round_, program):
        name, needs, seconds, act = program
        return Unit(f"speed/{arch} {dtype} {batch}/{name}/{round_}", "speed",
                    seconds, act, needs, most=max(240, 1.7 * seconds))

    def classes(self):
        """Measures where the time goes, by class of kernel, and the
        roofline."""
        def act(job, dtype, batch):
            flags = [*self.model(batch=batch), "--dtype", dtype]
            report = self.run_fusor(job, "plan", *flags, "--profile")
            return {"target": report["target"], "total": report["total"],
                    "op_classes": report["op_classes"]}
        return [Unit(f"classes/{self.scale.arch} {dtype} {batch}", "classes",
                     25, lambda job, d=dtype, b=batch: act(job, d, b),
                     ("backend",))
                for dtype in self.scale.dtypes for batch in self.scale.batches]

    def memory(self):
        """Finds the largest batch that fits into the device's memory, or into
        512 MiB."""
        def act(job, dtype):
            return self.run_fusor(
                job, "bench", *self.model(), "--dtype", dtype,
                "--find-max-batch", *([] if self.on_gpu else ["--memory", 512]))
        return [Unit(f"memory/{self.scale.arch} {dtype}", "memory", 40,
                     lambda job, d=dtype: act(job, d), ("backend",))
                for dtype in self.scale.dtypes if self.args.can_find_batch]

    def limits(self):
        return [Unit("limits/copy and matrix products", "limits", 30,
                     lambda job: self.run_python(
                         job, "torch_peer.py", "--limits", "--device",
                         self.device), ("torch",))]

