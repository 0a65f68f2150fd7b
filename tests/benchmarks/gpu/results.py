"""Formats the results of the units as JSON and as text."""

import re
import statistics

SPEED = re.compile(r"speed/(\S+) (\S+) (\d+)/(.*)/(\d+)$")


def cells(state):
    """Returns {(arch, dtype, batch): {program: {round: images/s}}}."""
    out = {}
    for name, record in state["units"].items():
        match = SPEED.match(name)
        if match is None or record["status"] != "passed":
            continue
        cell = out.setdefault((match[1], match[2], int(match[3])), {})
        cell.setdefault(match[4], {})[int(match[5])] = record["data"][
            "images_per_second"]
    return out


def roofline(state, arch, dtype, batch):
    """Returns the images/s that fusor would reach if every kernel of its plan
    took only the time of its bytes or its arithmetic on this device. Returns
    None without a plan."""
    record = state["units"].get(f"classes/{arch} {dtype} {batch}", {})
    limit = record.get("data", {}).get("total", {}).get("limit_us")
    return 1e6 * batch / limit if limit else None


def speeds(state):
    """Returns one row per program and cell: median, rounds, fusor's speed over
    it (the median over rounds that both ran), fraction of the roofline."""
    rows = []
    for (arch, dtype, batch), programs in cells(state).items():
        ours = programs.get("fusor", {})
        limit = roofline(state, arch, dtype, batch)
        for program, rounds in programs.items():
            median = statistics.median(rounds.values())
            ratios = [ours[r] / rounds[r] for r in rounds if r in ours]
            rows.append({
                "arch": arch, "dtype": dtype, "batch": batch,
                "program": program, "images_per_second": median,
                "rounds": len(rounds), "min": min(rounds.values()),
                "max": max(rounds.values()),
                "fusor_over_it": statistics.median(ratios) if ratios else None,
                "of_roofline": median / limit if limit else None})
    return rows


def best_peers(rows):
    """Returns [(arch, dtype, batch, peer, fusor's speed over it)]."""
    best = {}
    for row in rows:
        if not row["program"].startswith(("torch", "jax")):
            continue
        key = (row["arch"], row["dtype"], row["batch"])
        if (key not in best or row["images_per_second"] >
                best[key]["images_per_second"]):
            best[key] = row
    return [(*key, row["program"], row["fusor_over_it"])
            for key, row in best.items()]


def counts(state):
    out = {}
    for record in state["units"].values():
        phase = out.setdefault(record["phase"],
                               {"passed": 0, "failed": 0, "not run": 0})
        phase[record["status"]] += 1
    return out


def number(value, digits=2):
    return "" if value is None else f"{value:.{digits}f}"


def facts(machine):
    gpu = machine["gpu"]
    lines = [f"Device: {gpu['name']}, driver {gpu['driver_version']}, "
             f"{gpu['memory.total']}." if gpu else "Device: no GPU."]
    lines.append(f"Host: {machine['cpu']}, {machine['cores']} cores, "
                 f"{machine['libc']}.")
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items()
                         if v is not None)
    lines.append(f"Python: {versions or 'none of the peers'}.")
    return lines + ["", *(f"    {line}" for line in machine["doctor"])]


def speed_table(rows):
    lines = ["| model | dtype | batch | program | images/s | min | max | rounds "
             "| fusor / it | of the roofline |", "|---|---|---|---|---|---|---|"
             "---|---|---|"]
    for r in rows:
        lines.append(
            f"| {r['arch']} | {r['dtype']} | {r['batch']} | {r['program']} | "
            f"{number(r['images_per_second'], 1)} | {number(r['min'], 1)} | "
            f"{number(r['max'], 1)} | {r['rounds']} | "
            f"{number(r['fusor_over_it'], 3)} | {number(r['of_roofline'], 3)} |")
    return lines


def class_tables(state):
    lines = []
    for name, record in state["units"].items():
        if record["phase"] != "classes" or record["status"] != "passed":
            continue
        lines += ["", f"## {name.split('/', 1)[1]}, by class of kernel", "",
                  "| class | steps | ms | TB/s | TFLOP/s | of its limit |",
                  "|---|---|---|---|---|---|"]
        for kind, c in sorted(record["data"]["op_classes"].items(),
                              key=lambda item: -(item[1]["measured_us"] or 0)):
            us = c["measured_us"]
            tb = c["bytes"] / us * 1e-6 if us else None
            tflops = c["flops"] / us * 1e-6 if us else None
            lines.append(
                f"| {kind} | {c['steps']} | {number(us and us / 1e3, 3)} | "
                f"{number(tb)} | {number(tflops, 1)} | "
                f"{number(c['share_of_limit'], 3)} |")
    return lines


def check_table(report):
    lines = ["| phase | passed | failed | not run | still to run |",
             "|---|---|---|---|---|"]
    for phase in report["phases"]:
        c = report["counts"].get(phase, {})
        lines.append(f"| {phase} | {c.get('passed', 0)} | {c.get('failed', 0)} "
                     f"| {c.get('not run', 0)} | {report['pending'][phase]} |")
    return lines


def tables(report):
    """Returns the results so far, for a terminal."""
    speeds = report["speeds"]
    return ["", *check_table(report), "",
            *(speed_table(speeds) + [""] if speeds else [])]


def markdown(report):
    state = report["state"]
    lines = [f"# fusor on {report['subject']}", ""]
    if report["rehearsal"]:
        lines += ["**A rehearsal on the CPU with a small model: nothing here says "
                  "anything about a GPU.**", ""]
    lines += facts(report["machine"]) + ["", "Calls:", ""]
    lines += [f"- {call['date']}, {call['seconds']:.0f} s: `{call['command']}`"
              for call in state["calls"]]
    lines += ["", "## What was checked", "", *check_table(report)]
    for status in ("failed", "not run"):
        found = [(n, r) for n, r in state["units"].items()
                 if r["status"] == status]
        if found:
            lines += ["", f"{status.capitalize()}:", ""]
            lines += [f"- {n}: {r.get('why', '')}" for n, r in found]
    if report["speeds"]:
        lines += ["", "## Speed", "", *speed_table(report["speeds"]), ""]
        lines += [f"{arch}, {dtype}, batch {batch}: the best peer is {peer}, "
                  f"fusor / it {number(ratio, 3)}."
                  for arch, dtype, batch, peer, ratio in report["best_peers"]]
    found = {n: r["data"]["batch_size"] for n, r in state["units"].items()
             if r["phase"] == "memory" and r["status"] == "passed"}
    if found:
        lines += ["", "Largest batch that fits: " + ", ".join(
            f"{name.split('/', 1)[1]} {batch}"
            for name, batch in found.items()) + "."]
    return "\n".join([*lines, *class_tables(state), ""])


def make_report(state, machine, units, pending, rehearsal):
    rows = speeds(state)
    phases = list(dict.fromkeys(unit.phase for unit in units))
    waiting = {phase: 0 for phase in phases}
    for unit in units:
        waiting[unit.phase] += unit.name in pending
    gpu = machine["gpu"]
    return {"subject": gpu["name"] if gpu else machine["cpu"],
            "rehearsal": rehearsal, "machine": machine, "phases": phases,
            "counts": counts(state), "pending": waiting, "speeds": rows,
            "best_peers": best_peers(rows), "state": state}
