"""Runs units of work one after another in calls of limited time. Records their
results in the state, a JSON file from which the next call continues."""

import dataclasses
import json
import os
import pathlib
import shlex
import subprocess
import time
import typing

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
# A unit that was cut off after this share of a call's time does not fit.
WHOLE_CALL = 0.9
# Time of a call reserved for writing its results.
RESERVE_SECONDS = 5
LOG_BYTES = 2 << 20
TAIL_LINES = 15


class Failed(Exception):
    """The unit's check failed, or a program ended badly. The arguments are the
    reason and optionally numbers for the state."""


class NotRun(Exception):
    """The machine lacks what the unit needs."""


class OutOfTime(Exception):
    """The unit was cut off. `own` is true if its own time limit was reached,
    not the end of the call."""

    def __init__(self, seconds, own):
        super().__init__(f"took longer than {seconds:.0f} s")
        self.own = own


@dataclasses.dataclass(frozen=True)
class Unit:
    name: str
    phase: str
    seconds: float  # expected; needs as much time left, unless first
    action: typing.Callable  # Job -> numbers for the state, or an exception
    needs: tuple = ()  # names in Job.machine["has"]
    most: float = 0  # seconds until it fails; 0: four times `seconds`
    # A phase: run the unit only if a unit of that phase has failed, and then
    # instead of everything after it.
    if_failed: str = ""


class Job:
    """The interface for a unit's action."""

    def __init__(self, machine, log, deadline, unit):
        self.machine = machine
        self.most = unit.most or max(60, 4 * unit.seconds)
        self._log = log
        self._deadline = deadline
        self._end = time.monotonic() + self.most

    def run(self, command, environment=None, accept=(0,), whole=False):
        """Returns the program's stdout. Logs its command and the end of its
        output, or all of it. Fails unless its exit code is in `accept`."""
        command = [str(word) for word in command]
        end = min(self._end, self._deadline)
        self._log.add(f"$ {shlex.join(command)}")
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            errors="replace", stdin=subprocess.DEVNULL, start_new_session=True,
            env=dict(os.environ, **(environment or {})))
        try:
            out, err = process.communicate(timeout=max(0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            kill_group(process)
            out, err = process.communicate()
            self._log.add_tail(out, err)
            self._log.add("(cut off)")
            raise OutOfTime(self.most, self._end <= self._deadline) from None
        except BaseException:
            kill_group(process)
            raise
        self._log.add_tail(out, err, lines=None if whole else TAIL_LINES)
        self._log.add(f"(exit code {process.returncode})")
        if process.returncode not in accept:
            last = (err.strip() or out.strip()).splitlines()
            raise Failed(f"{pathlib.Path(command[0]).name} ended with "
                         f"{process.returncode}: "
                         f"{last[-1][:400] if last else 'no output'}")
        return out


def kill_group(process):
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        pass


class Log:
    """A text file that drops lines beyond LOG_BYTES."""

    def __init__(self, path):
        self._file = open(path, "a", encoding="utf-8")

    def add(self, line):
        if self._file.tell() < LOG_BYTES:
            self._file.write(line + "\n")
            self._file.flush()

    def close(self):
        self._file.close()

    def add_tail(self, *texts, lines=TAIL_LINES):
        """Adds the last `lines` lines of each text. None: all lines."""
        for text in texts:
            for line in text.splitlines()[-lines if lines else None:]:
                self.add("  " + line[:500])


def write_text(path, text):
    """Writes the file atomically."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def run_units(units, state, machine, log, deadline, save, progress=print,
              whole=None):
    """Runs the units without a record in state["units"], in order, while there
    is time. Records each and calls `save()`. `whole` is the maximum number of
    seconds of a call for a unit (default: what is left of this call). Returns
    the names of the remaining units."""
    pending, ran = [], False
    units = list(units)
    gates = {unit.if_failed for unit in units} - {""}
    whole = whole or deadline - time.monotonic()
    for unit in units:
        if is_done(state["units"].get(unit.name), whole):
            continue
        failed = failed_phases(state, gates)
        wanted = (unit.if_failed in failed if unit.if_failed
                  else not failed or unit.phase in failed)
        if not wanted:
            continue
        missing = [n for n in unit.needs if machine["has"].get(n) is not True]
        if missing:
            record = {"status": NOT_RUN, "why": machine["has"].get(
                missing[0]) or f"no {missing[0]}"}
        else:
            left = deadline - time.monotonic()
            if left <= 0 or (ran and left < unit.seconds):
                pending.append(unit.name)
                continue
            record = run_unit(unit, machine, log, deadline, whole)
            ran = True
            if record is None:
                progress(f"cut off    {unit.name}: goes on in the next call")
                pending.append(unit.name)
                continue
        record["phase"] = unit.phase
        state["units"][unit.name] = record
        save()
        progress(f"{record['status']:10} {unit.name}"
                 f"{': ' + record['why'] if record.get('why') else ''}"
                 f"{' (%.0f s)' % record['seconds'] if 'seconds' in record else ''}")
    return pending


def failed_phases(state, phases):
    """Returns the phases in which a unit has failed."""
    return {record["phase"] for record in state["units"].values()
            if record["status"] == FAILED} & phases


def is_done(record, whole):
    """Returns whether the unit has a record. One that did not fit into a
    shorter call than this is not done."""
    return record is not None and not record.get("did_not_fit", whole) < whole


def run_unit(unit, machine, log, deadline, whole):
    """Runs the unit. Returns its record, or None if the end of the call cut it
    off although it had not had a whole call."""
    log.add(f"== {unit.name}")
    begin = time.monotonic()
    job = Job(machine, log, deadline, unit)
    record = {}
    try:
        record = {"status": PASSED, "data": unit.action(job)}
    except NotRun as error:
        record = {"status": NOT_RUN, "why": str(error)}
    except Failed as error:
        record = {"status": FAILED, "why": error.args[0]}
        if len(error.args) > 1:
            record["data"] = error.args[1]
    except OutOfTime as error:
        had = time.monotonic() - begin
        if error.own:
            record = {"status": FAILED, "why": str(error)}
        elif had < WHOLE_CALL * whole:
            return None
        else:
            record = {"status": NOT_RUN, "did_not_fit": whole, "why":
                      f"does not fit into a call: cut off after {had:.0f} s"}
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        record = {"status": FAILED, "why": f"{type(error).__name__}: {error}"}
    record["seconds"] = round(time.monotonic() - begin, 1)
    if record.get("why"):
        log.add(f"{record['status']}: {record['why']}")
    return record


def load_state(path, identity):
    """Reads the state from a file, which must have the same identity. Returns
    a new state if there is no file. Raises ValueError."""
    if path is None or not path.exists():
        return {"format": 1, "identity": identity, "units": {}, "calls": []}
    state = json.loads(path.read_text(encoding="utf-8"))
    if state.get("format") != 1:
        raise ValueError(f"{path}: not a state of this program")
    for key, value in identity.items():
        if state["identity"].get(key) != value:
            raise ValueError(f"{path}: {key}: expected {value}, got "
                             f"{state['identity'].get(key)}")
    return state
