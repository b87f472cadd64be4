#!/usr/bin/env bash
# Runs every test, in several lanes side by side, and fails if one of them does. `make test` calls it.
#
# The tests against other programs mostly wait for these, so they share the processor well with the rest. Within a lane
# one test follows the other: some of them measure. What the first lane says is shown as it comes, what the others say
# when all are done.
set -uo pipefail
cd "$(dirname "$0")/.."

BIN=.venv/bin
# Apache's own servers take seconds to start and a quarter of a minute to stop.
APACHE=(tests/interop/test_{apache_harness,backup_interop,log_place_interop,name_server_interop,replication_pairs,spark_*,sql92_against_apache,store_interop}.py)
JAVA=(tests/interop/test_java_*.py tests/interop/test_guides.py)
# Each starts Spark anew, some of them several times.
OWN_SPARKS=(tests/spark/test_{examples,guide}.py)

# Java starts in half the time with its classes as it keeps them in an archive. These are made once, where they are
# needed most; the other lanes come to that later.
apache_lane() {
    trap 'exit 130' INT
    (cd tests && "../$BIN/python" -m interop.kept_classes)
    "$BIN/pytest" -rs "${APACHE[@]}"
}

spark_lane() {
    trap 'exit 130' INT
    "$BIN/python" tests/spark_classes.py
    "$BIN/pytest" -rs tests/spark -m "not slow" "${OWN_SPARKS[@]/#/--ignore=}"
}

# Work for the processor, and what is killed while it works.
forms_and_crashes() {
    local failed=0
    trap 'exit 130' INT
    PYROMQ_KERNEL=python "$BIN/pytest" tests/records tests/store tests/wire tests/net tests/broker \
        tests/spark/test_{decode,segments_read,segments_split,store_files}.py || failed=1
    "$BIN/pytest" tests/crash tests/chaos || failed=1
    return $failed
}

names=() pids=() logs=()

# start NAME COMMAND…: in a process group of its own, so that it can be interrupted as a whole and stop its servers
start() {
    local log
    log=$(mktemp)
    set -m
    "${@:2}" >"$log" 2>&1 &
    set +m
    names+=("$1") pids+=($!) logs+=("$log")
}

stop_all() {
    local pid
    for pid in "${pids[@]}"; do kill -INT -- "-$pid" 2>/dev/null; done
    for pid in "${pids[@]}"; do wait "$pid"; done
    rm -f "${logs[@]}"
}

trap stop_all EXIT
trap 'exit 130' INT TERM

# Hundreds of processes import the package: none has to compile it, also where Python is told not to keep what it compiles.
"$BIN/python" -m compileall -q src

start "tests/interop, with Apache's servers" apache_lane
start "tests/interop, with the Java client, and what starts Spark itself" "$BIN/pytest" -rs "${JAVA[@]}" "${OWN_SPARKS[@]}"
start "tests/interop, the others" "$BIN/pytest" -rs tests/interop "${APACHE[@]/#/--ignore=}" "${JAVA[@]/#/--ignore=}"
start "tests/spark" spark_lane
start "the readable forms, tests/crash and tests/chaos" forms_and_crashes

failed=0
echo "--- everything else"
"$BIN/pytest" --ignore=tests/interop --ignore=tests/crash --ignore=tests/chaos --ignore=tests/spark || failed=1
for lane in "${!pids[@]}"; do
    wait "${pids[lane]}" || failed=1
    echo "--- ${names[lane]}"
    cat "${logs[lane]}"
done
exit $failed
