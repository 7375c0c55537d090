"""Programs that log through clogs: forks, the ends of processes, and what is found afterwards."""

from pathlib import Path

from tests.kits.clogs.programs import Program
from tests.kits.clogs.ring_thread import RingThread

FILE = "app.log"


def quiet(stderr: str) -> bool:
    """Whether nothing was told but that the receivers of these tests know of no configuration."""
    return not [line for line in stderr.splitlines() if "configuration cannot be had" not in line]


def by_speaker(lines: list[bytes]) -> dict[str, list[int]]:
    """Lines as `speaker number`: each speaker's numbers, in order."""
    found: dict[str, list[int]] = {}
    for line in lines:
        speaker, number = line.decode().split()
        found.setdefault(speaker, []).append(int(number))
    return found


def test_a_program_that_ends_has_shipped_its_lines() -> None:
    text = """
    ship("app.log")
    early.append(lambda: log.info("exit 0"))
    def work():
        for number in range(100):
            log.info("thread %d", number)
        sys.exit(0)
    thread = threading.Thread(target=work)
    thread.start()
    for number in range(1000):
        log.info("main %d", number)
    def forever():
        while True:
            log.info("daemon 0")
            time.sleep(0.001)
    threading.Thread(target=forever, daemon=True).start()
    sys.exit(0)
    """
    with RingThread() as ring:
        process = Program(text, ring.servers).run()
        assert quiet(process.stderr), process.stderr
        found = by_speaker(ring.lines(FILE))
    assert found["main"] == list(range(1000))
    assert found["thread"] == list(range(100))
    # What runs at the very end, after all that was registered later, is shipped as well.
    assert found["exit"] == [0]


def test_forked_children_ship_their_own_lines_and_the_parent_its_own(tmp_path: Path) -> None:
    text = """
    handler = ship("app.log")
    is_over = threading.Event()
    def work(thread):
        number = 0
        while not is_over.is_set() and number < 20_000:
            log.info("parent-%d %d", thread, number)
            number += 1
            if number % 20 == 0:
                time.sleep(0.001)
        os.write(1, b"parent-%d %d;" % (thread, number))
    threads = [threading.Thread(target=work, args=(each,)) for each in range(2)]
    for thread in threads:
        thread.start()
    children = []
    for child in range(4):
        time.sleep(0.05)
        pid = os.fork()
        if pid == 0:
            if child == 3:
                tasks = len(os.listdir("/proc/self/task"))
                os._exit(0 if tasks == 1 else 17)
            for number in range(200):
                log.info("child-%d %d", child, number)
            sys.exit(0)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert codes == [0, 0, 0, 0], codes
    is_over.set()
    for thread in threads:
        thread.join()
    """
    with RingThread() as ring:
        program = Program(text, ring.servers, spool="always", spool_folder=tmp_path / "spool")
        process = program.run()
        assert quiet(process.stderr), process.stderr
        found = by_speaker(ring.lines(FILE))
        lives = {batch.producer for place in ring.storage.of(FILE) for batch in place.batches}
    expected = dict(each.split() for each in process.stdout.split(";") if each)
    assert len(expected) == 2
    for speaker, count in expected.items():
        assert found.pop(speaker) == list(range(int(count)))
    assert found == {f"child-{child}": list(range(200)) for child in range(3)}
    assert len(lives) == 4
    # A slot for each process that was there at the same time, and no more.
    assert {"0", "1"} <= {each.name for each in (tmp_path / "spool").iterdir()}


def test_children_of_multiprocessing_ship_what_they_log_to_their_end() -> None:
    text = """
    import multiprocessing
    ship("app.log")
    def work(child):
        for number in range(100):
            log.info("child-%d %d", child, number)
    if __name__ == "__main__":
        log.info("parent 0")
        context = multiprocessing.get_context("fork")
        children = [context.Process(target=work, args=(each,)) for each in range(3)]
        for child in children:
            child.start()
        for child in children:
            child.join()
            assert child.exitcode == 0
        with context.Pool(2) as pool:
            pool.map(work, [10, 11])
            pool.close()
            pool.join()
        log.info("parent 1")
    """
    with RingThread() as ring:
        process = Program(text, ring.servers).run()
        assert quiet(process.stderr), process.stderr
        found = by_speaker(ring.lines(FILE))
    assert found.pop("parent") == [0, 1]
    assert found == {f"child-{child}": list(range(100)) for child in (0, 1, 2, 10, 11)}


def test_the_end_is_bounded_where_servers_are_gone_and_what_is_lost_is_told() -> None:
    text = """
    ship("app.log", exit_ms=300)
    ship("other.log", exit_ms=300)
    for number in range(50):
        log.info("main %d", number)
    """
    with RingThread(1) as ring:
        servers = ring.servers
    process = Program(text, servers).run()  # which waits for its end, and not for ever
    assert process.stderr.count("50 log lines were dropped") == 2


def test_what_is_left_at_the_end_is_shipped_by_the_next_process(tmp_path: Path) -> None:
    text = """
    handler = ship("app.log", exit_ms=200)
    for number in range(50):
        log.info("{speaker} %d", number)
    """
    with RingThread(1) as ring:
        spool = tmp_path / "spool"
        settings = {"when_full": "spool", "spool_folder": spool}
        ring.stop_all()
        process = Program(text.format(speaker="first"), ring.servers, **settings).run()
        assert "dropped" not in process.stderr
        assert ring.lines(FILE) == []
        ring.start("log-0")
        text = text.replace("exit_ms=200", "exit_ms=10_000")
        process = Program(text.format(speaker="second"), ring.servers, **settings).run()
        assert quiet(process.stderr), process.stderr
        lines = ring.lines(FILE)
    assert by_speaker(lines) == {"first": list(range(50)), "second": list(range(50))}
    assert lines[0] == b"first 0"
    assert lines[-1] == b"second 49"


def test_killed_processes_lose_only_what_was_neither_stored_nor_spooled(tmp_path: Path) -> None:
    text = """
    handler = ship("app.log")
    for turn in range(2):
        for number in range(turn * 150, turn * 150 + 150):
            log.info("{speaker} %d", number)
        handler.shipper.sync(20_000)
        print("synced", flush=True)
        input()
    {ending}
    """
    again = """
    ship("app.log", exit_ms=10_000)
    log.info("next 0")
    """
    endings = {"killed": "os.kill(os.getpid(), signal.SIGKILL)", "ended": "os._exit(0)"}
    settings = {"spool": "always", "spool_folder": tmp_path / "spool"}
    with RingThread(1) as ring:
        programs = [
            Program(text.format(speaker=speaker, ending=ending), ring.servers, **settings).start()
            for speaker, ending in endings.items()
        ]
        for program in programs:
            assert program.stdout is not None
            assert program.stdout.readline() == "synced\n"
        # Two at the same time never have one slot.
        assert sorted(each.name for each in (tmp_path / "spool").iterdir()) == ["0", "1"]
        ring.stop_all()
        for program in programs:
            assert program.communicate("\n\n", timeout=120)[0] == "synced\n"
        ring.start("log-0")
        Program(again, ring.servers, **settings).run()
        lines = ring.lines(FILE)
    assert by_speaker(lines) == {speaker: list(range(300)) for speaker in endings} | {"next": [0]}
