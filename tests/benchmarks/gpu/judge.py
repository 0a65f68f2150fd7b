"""Decides whether a step's errors are acceptable."""

import statistics

ALL_FACTOR, EACH_FACTOR = 2, 4
# Lower bound of PyTorch's own error of a tensor.
EACH_FLOOR = 1e-5


def judge(fusor, torch_runs):
    """`fusor` is [errors per seed], `torch_runs` is {layout: [errors per
    seed]}. Returns medians, ratios and the tensors with too large errors."""
    rows, bad = {}, []
    for name in fusor[0]:
        ours = statistics.median(run[name] for run in fusor)
        theirs = max(statistics.median(run[name] for run in runs)
                     for runs in torch_runs.values())
        allowed = (ALL_FACTOR * theirs if name == "all"
                   else EACH_FACTOR * max(theirs, EACH_FLOOR))
        rows[name] = {"fusor": ours, "torch": theirs}
        if not ours <= allowed:
            bad.append(name)
    ratios = {n: r["fusor"] / max(r["torch"], EACH_FLOOR)
              for n, r in rows.items() if n != "all"}
    worst = max(ratios, key=ratios.get)
    return {"all": rows["all"], "worst": {"tensor": worst, **rows[worst]},
            "tensors": len(ratios), "too_far": bad}
