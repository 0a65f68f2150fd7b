#!/usr/bin/env python3
"""Tests fusor on a machine with a GPU, compares its speed with PyTorch's and
JAX's, and reports where its time goes.

    run_gpu.py --out OUT --limit 570             # repeat while it exits with 75

Needs only Python 3.9. Uses PyTorch, torchvision, JAX and compute-sanitizer if
they are installed. Each call ends within --limit seconds, prints a table of the
results so far, and leaves state.json, results.json, results.md, log.txt,
compiled kernels (cache) and autotune results (choices-DTYPE) in OUT. The next
call resumes from OUT/state.json, or from that of --state if OUT is emptied
between calls.

Exit codes: 0 all units are done and none has failed; 1 a unit has failed;
2 an argument is wrong; 6 no GPU; 75 some units have not run: call again.
"""

import argparse
import datetime
import json
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

import machine
import phases
import results
import units

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parents[2]  # of the sources or the bundle
FAILED, NO_DEVICE, CALL_AGAIN = 1, 6, 75
# Lowerings of batch normalisation, in addition to fusor's own choice.
LOWERINGS = ("separate", "kernels", "statistics", "gradients", "prologues", "joins")


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--out", type=pathlib.Path, required=True,
                        help="folder that is written to")
    parser.add_argument("--limit", type=float, default=570,
                        help="seconds that this call may take")
    parser.add_argument("--state", type=pathlib.Path,
                        help="state.json of the call before (OUT/state.json)")
    parser.add_argument("--earlier", type=pathlib.Path, metavar="OUT",
                        help="an earlier run's folder, whose compiled kernels and "
                        "autotune results this run uses (that of --state)")
    parser.add_argument("--backend", default="cuda", choices=["cuda", "cpu"],
                        help="cpu: a rehearsal of it all on a small model")
    parser.add_argument("--fusor", help="the program (the bundle's or build/'s)")
    parser.add_argument("--python", default=sys.executable,
                        help="a Python with PyTorch, JAX (this one)")
    parser.add_argument("--data", type=pathlib.Path,
                        help="image folder of the loss curves (samples)")
    parser.add_argument("--scratch", type=pathlib.Path,
                        default=pathlib.Path(tempfile.gettempdir()) /
                        "fusor-gpu", help="folder for kernels and samples")
    parser.add_argument("--only", nargs="+", metavar="PHASE",
                        help="these phases, or units whose names begin so, in "
                        "this order")
    parser.add_argument("--max-autotune", action="store_true",
                        help="measure torch.compile's max-autotune as well")
    parser.add_argument("--list", action="store_true",
                        help="print the units in their order and end")
    return parser.parse_args()


def first_of(*paths):
    return next((path for path in paths if path.exists()), None)


def look_around(args):
    """Returns what this fusor is and supports."""
    if args.fusor is None:
        found = first_of(TREE / "bin/fusor", TREE / "build/bin/fusor")
        args.fusor = shlex.quote(str(found)) if found else "fusor"
    args.tests = first_of(TREE / "run_tests.sh")
    help_text = machine.output([*shlex.split(args.fusor), "bench", "--help"])
    if help_text is None:
        sys.exit(f"run_gpu: {args.fusor} does not run; --fusor names it")
    args.lowerings = LOWERINGS if "--bn-lowering" in help_text else ()
    args.can_tune = "--tune" in help_text
    args.can_find_batch = "--find-max-batch" in help_text


def identity(args, here):
    """Returns what must be the same in all calls."""
    gpu = here["gpu"]
    return {"backend": args.backend, "fusor": here["doctor"][0],
            "device": gpu["name"] if gpu else here["cpu"]}


def pick(all_units, only):
    """Returns the units of the phases, or whose names begin so, in the order
    of `only`."""
    if not only:
        return all_units
    picked = {}
    for start in only:
        found = [u for u in all_units
                 if u.phase == start or
                 ("/" in start and u.name.startswith(start))]
        if not found:
            known = dict.fromkeys(unit.phase for unit in all_units)
            sys.exit(f"run_gpu: no phase {start}; there are: {', '.join(known)}")
        picked.update((unit.name, unit) for unit in found)
    return list(picked.values())


def take_over(earlier, out):
    """Copies the compiled kernels and autotune results that `out` lacks."""
    if earlier is None or earlier.resolve() == out.resolve():
        return
    for path in [*phases.kernel_cache(earlier).rglob("*"),
                 *earlier.glob(phases.choices_file(earlier, "*").name)]:
        copy = out / path.relative_to(earlier)
        if path.is_file() and not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)


def save(args, state, here, chosen, pending):
    report = results.make_report(state, here, chosen, pending,
                                 args.backend != "cuda")
    text = results.markdown(report)
    units.write_text(args.out / "state.json", json.dumps(state) + "\n")
    units.write_text(args.out / "results.json",
                     json.dumps(report, indent=1) + "\n")
    units.write_text(args.out / "results.md", text)
    return report


def main():
    begin = time.monotonic()
    args = parse_arguments()
    look_around(args)
    whole = args.limit - units.RESERVE_SECONDS
    deadline = begin + whole
    here = machine.describe(args.fusor, args.backend)
    try:
        state = units.load_state(args.state or args.out / "state.json",
                                 identity(args, here))
    except (OSError, ValueError) as error:
        print(f"run_gpu: {error}", file=sys.stderr)
        return 2
    # Probe only once, since importing the frameworks is slow.
    if state.get("peers", {}).get("python") != args.python:
        state["peers"] = machine.probe(args.python,
                                       deadline - time.monotonic())
    machine.add_peers(here, state["peers"], args.backend)
    scale = (phases.Scale() if args.backend == "cuda" else
             phases.rehearsal(here["has"]["torchvision"] is True))
    chosen = pick(phases.Plan(args, scale).all(), args.only)
    if args.list:
        print("\n".join(f"{u.name} ({u.seconds:.0f} s)" for u in chosen))
        return 0
    phases.kernel_cache(args.out).mkdir(parents=True, exist_ok=True)
    args.scratch.mkdir(parents=True, exist_ok=True)
    take_over(args.earlier or (args.state and args.state.parent), args.out)
    call = {"date": here["date"], "command": shlex.join(sys.argv), "seconds": 0}
    state["calls"].append(call)

    def keep(pending=None):
        call["seconds"] = time.monotonic() - begin
        waiting = (pending if pending is not None else
                   {u.name for u in chosen if not units.is_done(
                      state["units"].get(u.name), whole)})
        return save(args, state, here, chosen, waiting)

    here_and_state = {**here, "state": state}
    pending = units.run_units(chosen, state, here_and_state,
                              units.Log(args.out / "log.txt"), deadline, keep,
                              lambda line: print(line, flush=True), whole)
    print("\n".join(results.tables(keep(pending))))
    failed = [u.name for u in chosen
              if state["units"].get(u.name, {}).get("status") == units.FAILED]
    print(f"{len(chosen) - len(pending)} of {len(chosen)} units done, "
          f"{len(failed)} failed: {args.out / 'results.md'}")
    if here["has"]["backend"] is not True:
        print(f"run_gpu: {here['has']['backend']}", file=sys.stderr)
        return NO_DEVICE
    if pending:
        return CALL_AGAIN
    return FAILED if failed else 0


if __name__ == "__main__":
    sys.exit(main())
