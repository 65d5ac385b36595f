"""An independent host of Link W, protocol version 8.

    python3 tests/hosts/linkw --worker W --model M --library L [--part PART]… [NAME]…

Written from the protocol's text alone, in another language than the worker and with nothing of it, so that the two
can disagree. Runs the checks of the files check_PART (all without one) whose names contain one of the NAMEs (all
without one), prints a line for each, and ends with code 1 if any fact did not hold. Linux and Python 3.10 or later, the standard library only.

  postcard, messages   the payload encoding and the table of messages
  process, link        the worker's process; frames and descriptors
  memory, session      rings, buffers; a host that audits every tick
  schedule, sampling   a small scheduler; the picking rules, for HOST lanes
  check_*              the checks, by the part of the text they are about
"""

import argparse
import os
import sys
import time
import traceback

import check_frames
import check_process
import check_seeds
import check_state
import check_sync
import check_ticks
import check_tokenizer
import check_vectors
from expect import CHECKS, NOTES, Failed
from host import Host

# In the order of their imports, which is the order of their checks.
PARTS = {
    module.__name__.removeprefix("check_"): module
    for module in (
        check_frames,
        check_process,
        check_seeds,
        check_state,
        check_sync,
        check_ticks,
        check_tokenizer,
        check_vectors,
    )
}


def main():
    parser = argparse.ArgumentParser(description="Checks a worker of Link W version 8.")
    parser.add_argument("--worker", required=True, help="the worker's executable")
    parser.add_argument("--model", required=True, help="a model it reads")
    parser.add_argument("--library", required=True, help="its tokenizer library")
    parser.add_argument("--part", action="append", choices=PARTS, help="a file of checks to run")
    parser.add_argument("names", nargs="*", help="parts of the names of the checks to run")
    given = parser.parse_args()

    host = Host(given.worker, given.model, given.library)
    wrong = 0
    ran = 0
    for name, rules, function in CHECKS:
        if given.part and function.__module__.removeprefix("check_") not in given.part:
            continue
        if given.names and not any(part in name for part in given.names):
            continue
        ran += 1
        started = time.monotonic()
        try:
            function(host)
            outcome = "ok"
        except Failed as failure:
            outcome = f"FAILED: {failure}"
            place = traceback.extract_tb(failure.__traceback__)
            outcome += "".join(f"\n    {frame.filename}:{frame.lineno} {frame.name}" for frame in place[1:])
            wrong += 1
        except Exception:
            outcome = "FAILED:\n" + traceback.format_exc()
            wrong += 1
        print(f"{name} ({rules}) {1000 * (time.monotonic() - started):.0f} ms: {outcome}", flush=True)
    for text in NOTES:
        print(f"note: {text}")
    spent = os.times()
    own, workers = spent.user + spent.system, spent.children_user + spent.children_system
    print(f"{ran} checks, {wrong} failed; {own:.1f} s of the host's processor time, {workers:.1f} s of the workers'")
    return 1 if wrong or not ran else 0


sys.exit(main())
