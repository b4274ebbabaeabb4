"""The package against a socket that is no machine: what a peer may say, and what is sent."""

import base64
import json
import os
import socket
import tempfile
import threading
import unittest

import open_tofu
from open_tofu import model, tables
from open_tofu.connection import Connection
from open_tofu.machine import MOST_INPUT, WINDOW

HELLO = {"reply": "hello", "protocol": 1, "tofu": "0.1.0"}
MACHINE = {
    "reply": "machine", "pid": 1, "shape": "2x1x1x1x1x1", "torus": [True, True, True],
    "generation": "fugaku", "arch": None, "seconds": 1.5, "jobs": [], "a_new_field": 1,
    "nodes": [
        {"index": n, "at": [n, 0, 0, 0, 0, 0], "part": None, "name": f"t-{n}", "kind": "bare",
         "state": "running", "vmm": "tofu", "arch": None, "down": False, "pid": None,
         "seconds": 1.0, "another": []}
        for n in (0, 1)
    ],
}


class Peer:
    """Answers each connection by a script: what is expected, and what is answered to it."""

    def __init__(self, *script, hello=HELLO):
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "control")
        self.got = []
        self._script = list(script)
        self._hello = hello
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.path)
        self._socket.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.close()
        self.folder.cleanup()

    def _serve(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, connection.makefile("rw", encoding="utf-8") as stream:
                try:
                    self._say(stream, self._hello)
                    for line in stream:
                        self.got.append(json.loads(line))
                        answers = self._script.pop(0) if self._script else []
                        for answer in answers:
                            self._say(stream, answer)
                except (OSError, ValueError):
                    pass

    @staticmethod
    def _say(stream, what):
        stream.write(what if isinstance(what, str) else json.dumps(what) + "\n")
        stream.flush()

    def machine(self):
        return open_tofu.Machine(socket=self.path)


class Socket(unittest.TestCase):
    def test_info_ignores_new_fields(self):
        with Peer([MACHINE]) as peer:
            info = peer.machine().info()
        self.assertEqual([node.at[0] for node in info.nodes], [0, 1])
        self.assertEqual(info.lengths, (2, 1, 1, 1, 1, 1))
        self.assertEqual(peer.got, [{"request": "info", "ping": False}])

    def test_error_is_refused_with_its_reason(self):
        with Peer([{"reply": "error", "why": "the node has no virtual machine"}]) as peer:
            with self.assertRaisesRegex(open_tofu.Refused, "no virtual machine"):
                peer.machine().restart(0)

    def test_bad_peers_are_errors_of_the_package(self):
        for hello in ({"reply": "hello", "protocol": 2}, {"reply": "done"}, "nonsense\n", "[1]\n"):
            with self.subTest(hello=hello), Peer(hello=hello) as peer:
                with self.assertRaises(open_tofu.ProtocolError):
                    peer.machine()
        with self.assertRaises(open_tofu.NoMachine):
            open_tofu.Machine(socket="/nowhere/control")

    def test_a_silent_peer_times_out(self):
        with Peer([]) as peer, Connection(peer.path, timeout=0.2) as connection:
            with self.assertRaises(open_tofu.TimedOut):
                connection.ask("info")

    def test_exec_grants_credit_and_sends_input(self):
        out = base64.b64encode(b"hello\n").decode()
        # As much input as the node has not granted more for, and 10 bytes when it has.
        sent = bytes(WINDOW + 10)
        parts = WINDOW // MOST_INPUT
        script = [[]] * parts + [
            [{"reply": "program", "what": {"credit": 10}}],
            [],
            [{"reply": "program", "what": {"output": ["out", out]}}],
            [{"reply": "program", "what": {"ended": {"code": 3}}}],
        ]
        with Peer(*script) as peer:
            done = peer.machine().exec(0, ["cat"], input=sent, env={"A": "b"}, timeout=10)
        self.assertEqual((done.code, done.out, done.ok), (3, b"hello\n", False))
        first, *to = peer.got
        self.assertEqual((first["args"], first["env"]), (["cat"], [["A", "b"]]))
        self.assertIs(first["stdin"], True)
        inputs = [what["what"] for what in to]
        self.assertEqual(
            inputs,
            [{"input": base64.b64encode(bytes(MOST_INPUT)).decode()}] * parts
            + [
                {"input": base64.b64encode(bytes(10)).decode()},
                "input_end",
                {"credit": ["out", 6]},
            ],
        )

    def test_programs_that_cannot_run_are_errors(self):
        ended = {"ended": {"not_run": {"missing": True, "why": "no such program"}}}
        with Peer([{"reply": "program", "what": ended}]) as peer:
            with self.assertRaisesRegex(open_tofu.TofuError, "no such program"):
                peer.machine().exec(0, ["nothing"])

    def test_links_and_faults_are_sent_as_documented(self):
        done = {"reply": "done"}
        links = {"reply": "links", "down": [{"node": 0, "port": "X+"}]}
        with Peer([done], [done], [links]) as peer:
            machine = peer.machine()
            machine.set_link(0, "X+", False)
            machine.set_faults("loss=1%")
            self.assertEqual(machine.links_down(), [{"node": 0, "port": "X+"}])
        self.assertEqual(
            peer.got[:2],
            [
                {"request": "set_link", "node": 0, "port": "X+", "up": False},
                {"request": "set_faults", "faults": "loss=1%"},
            ],
        )

    def test_traces_are_collected_until_they_end(self):
        command = {
            "node": 0, "tni": 0, "cq": 3, "command": "Put", "to": {"node": 1}, "length": 8,
            "hops": ["C"], "begin_ns": 1000, "end_ns": 2500, "result": "0x00 SUCCESS",
        }
        script = [
            {"reply": "traced", "commands": [], "interrupts": []},
            {"reply": "traced", "commands": [command], "interrupts": [{"node": 0}]},
            {"reply": "trace_ended", "commands": 1, "open": 0, "lost": 2, "seconds": 1},
        ]
        with Peer(script) as peer:
            traced = peer.machine().trace(count=1)
        self.assertEqual((len(traced.commands), len(traced.interrupts), traced.lost), (1, 1, 2))
        (row,) = tables.command_rows(traced)
        self.assertEqual((row["queue"], row["us"], row["hops"], row["why"]), ("0/3", 1.5, 1, None))
        with Peer() as peer, self.assertRaises(ValueError):
            peer.machine().trace()

    def test_events_end_with_the_connection_or_the_wait(self):
        event = {
            "reply": "event", "seconds": 2.5, "node": 0, "at": [0] * 6, "event": "link",
            "port": "X+", "up": False,
        }
        with Peer([{"reply": "done"}, event]) as peer:
            (seen,) = list(peer.machine().events(timeout=0.2))
        self.assertEqual((seen.event, seen.more), ("link", {"port": "X+", "up": False}))

    def test_counters_become_rows(self):
        counters = {
            "tnis": [{"NUM_SEND_TLP": 5}], "ports": [{"NUM_SEND_TLP": 1}, {"NUM_SEND_TLP": 2}],
            "queues": [{"tni": 0, "cq": 11, "counters": {"TCQ_NUM_NOTICE": 5}}], "ip": None,
            "nwp": None, "links": [], "under_way": 2,
        }
        rows = [tuple(row.values()) for row in tables.counter_rows(7, counters)]
        self.assertEqual(
            rows,
            [
                (7, "tni 0", "NUM_SEND_TLP", 5),
                (7, "port A", "NUM_SEND_TLP", 1),
                (7, "port C", "NUM_SEND_TLP", 2),
                (7, "queue 0/11", "TCQ_NUM_NOTICE", 5),
            ],
        )


class Shapes(unittest.TestCase):
    def info(self, shape, torus=(False, False, False)):
        return model.info({**MACHINE, "shape": shape, "torus": list(torus), "nodes": []})

    def test_neighbours_are_those_of_the_machine(self):
        unit = self.info("1x1x1x2x3x2")
        at = (0, 0, 0, 0, 0, 0)
        there = {port: unit.neighbor(at, port) for port in model.PORTS}
        self.assertEqual(
            {port: to for port, to in there.items() if to},
            {
                "A": (0, 0, 0, 1, 0, 0), "C": (0, 0, 0, 0, 0, 1),
                "B-": (0, 0, 0, 0, 2, 0), "B+": (0, 0, 0, 0, 1, 0),
            },
        )
        mesh, torus = self.info("3x1x1x1x1x1"), self.info("3x1x1x1x1x1", (True, False, False))
        self.assertIsNone(mesh.neighbor(at, "X-"))
        self.assertEqual(torus.neighbor(at, "X-"), (2, 0, 0, 0, 0, 0))

    def test_pictures_explain_their_colours(self):
        info = model.info({**MACHINE, "torus": [False] * 3})
        here, there = (node.at for node in info.nodes)
        loads = [open_tofu.LinkLoad(0, here, "X+", there, 5e6)]
        svg = open_tofu.machine_under_load(info, loads).svg
        self.assertIn("up to 5 MB/s", svg)
        self.assertIn("no traffic", svg)
        self.assertIn('stroke="#440154"', svg)
        down = open_tofu.machine_under_load(info, loads, [{"node": 0, "port": "X+"}]).svg
        self.assertIn('stroke="#d55e00"', down)
        curve = open_tofu.curves({"a": [(1, 2), (10, 4)]}, x="bytes", y="GB/s").svg
        self.assertTrue("bytes" in curve and "GB/s" in curve and ">10<" in curve)


if __name__ == "__main__":
    unittest.main()
