"""The classes of Apache's servers as Java keeps them once it has read and checked them: they start in half the time.

`python -m interop.support.kept_classes`, in tests/, makes the archive; `scripts/run_tests.py` does that. Tests run
without it too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from interop.support.apache import CACHE, ApacheCluster, ToolchainMissing, message, toolchain

DUMP_TIMEOUT_S = 120


def main() -> None:
    jcmd = shutil.which("jcmd")
    try:
        archive = toolchain().archive
    except ToolchainMissing:
        return
    if jcmd is None or archive.exists():
        return
    fresh = CACHE / f"{archive.stem}.{os.getpid()}"
    with TemporaryDirectory() as directory:
        cluster = ApacheCluster(Path(directory) / "store", jvm_options=["-XX:+RecordDynamicDumpInfo"])
        cluster.start()
        try:
            _some_work(cluster)
            command = [jcmd, str(cluster.broker_pid), "VM.cds", "dynamic_dump", str(fresh)]
            subprocess.run(command, check=True, timeout=DUMP_TIMEOUT_S, stdout=subprocess.DEVNULL)
        finally:
            cluster.kill()
    fresh.rename(archive)


def _some_work(cluster: ApacheCluster) -> None:
    """Have the broker load the classes of topics, sends, pulls and queries, which nearly every test needs."""
    with cluster.referee() as referee:
        referee.create_topic("archived", 4)
        [sent] = referee.send([message("archived", 0, b"body", keys="key")])
        referee.settle("archived", 1)
        referee.dump("archived")
        referee.by_key("archived", "key")
        referee.by_id("archived", sent["offsetMsgId"])
        referee.by_time("archived", 0, 0)


if __name__ == "__main__":
    main()
