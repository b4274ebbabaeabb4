"""The package against machines: small guests, jobs on the host, networks in modelled time.

`TOFU` names the command. Without it, or without /dev/kvm, what needs it is skipped. With
`TOFU_TEST_LINUX` a Linux node is booted, too.
"""

import json
import os
import shutil
import unittest

import open_tofu
from open_tofu.machine import command

NOTEBOOKS = os.path.join(os.path.dirname(__file__), "..", "notebooks")
THERE = shutil.which(command()) is not None
KVM = os.access("/dev/kvm", os.R_OK | os.W_OK)


def rows(table):
    """A table's rows as dictionaries, with pandas or without."""
    return table if isinstance(table, list) else table.to_dict("records")


@unittest.skipUnless(THERE, "there is no command tofu")
class Commands(unittest.TestCase):
    def test_a_scenario_has_the_same_results_each_time(self):
        fields = {"shape": "2x1x1x1x1x1", "pattern": "neighbour", "size": [8, 1920], "count": 5}
        first, again = open_tofu.simulate(fields), open_tofu.simulate(fields)
        self.assertEqual(first["rows"], again["rows"])
        self.assertEqual([row["delivered"] for row in first["rows"]], [10, 10])
        with self.assertRaisesRegex(open_tofu.TofuError, "shape"):
            open_tofu.simulate({**fields, "shape": "none"})

    def test_a_job_on_the_host_prints_lines_of_ranks(self):
        done = open_tofu.run(["sh", "-c", "echo rank $TOFU_RANK; exit $TOFU_RANK"], n=2, timeout=60)
        self.assertEqual((done.lines(0), done.code), (["rank 0"], 1))
        with self.assertRaises(open_tofu.TofuError):
            open_tofu.run("/no/such/program", options=["--no-such-option"])

    def test_a_machine_that_cannot_start_says_why(self):
        with self.assertRaisesRegex(open_tofu.TofuError, "shape"):
            open_tofu.Machine.start("--shape", "33x1x1x1x1x1")


@unittest.skipUnless(THERE, "there is no command tofu")
@unittest.skipUnless(KVM, "/dev/kvm is not there or may not be opened")
class Machines(unittest.TestCase):
    def test_a_unit_is_started_watched_and_broken(self):
        options = ("--guest", "allpairs", "--args", "rounds=100000", "--timeout", "100s")
        name = f"python-{os.getpid()}"
        with open_tofu.Machine.start(*options, name=name) as machine:
            self.assertIn(name, open_tofu.machines())
            self.assertEqual(len(machine.nodes), 12)
            loads = machine.link_loads(0.3)
            self.assertEqual(len(loads), 12 * 4)
            self.assertGreater(max(load.bytes_per_s for load in loads), 0)
            self.assertIn("<svg", open_tofu.machine_under_load(machine.info(), loads).svg)
            stats = rows(machine.stats())
            sent = [row for row in stats if row["counter"] == "NUM_SEND_TLP"]
            self.assertGreater(sum(row["value"] for row in sent), 0)
            traced = rows(machine.trace_table(nodes=[0], count=5, seconds=20))
            self.assertGreaterEqual(len(traced), 5)
            self.assertEqual({row["node"] for row in traced}, {0})
            self.assertTrue(any(of["name"] == "NODE_ADDRESS" for of in machine.registers(1)))
            self.assertIsInstance(machine.inspect(0, "device", depth=1), dict)
            machine.set_faults("duplicate=1%,seed=3")
            self.assertIn("duplicate", (machine.faults() or {})["faults"])
            machine.set_faults(None)
            self.assertIsNone(machine.faults())
            machine.set_link(0, "B+", False)
            self.assertEqual(len(machine.links_down()), 1)
            with self.assertRaises(open_tofu.Refused):
                machine.set_link(0, "X+", False)
            with self.assertRaises(open_tofu.TofuError):
                machine.exec(0, ["true"])
            machine.down()
            machine.wait(30)
        with self.assertRaises(open_tofu.NoMachine):
            open_tofu.Machine(name)

    def test_notebooks_run_cell_by_cell(self):
        for name in sorted(os.listdir(NOTEBOOKS)):
            with self.subTest(notebook=name):
                with open(os.path.join(NOTEBOOKS, name), encoding="utf-8") as file:
                    cells = json.load(file)["cells"]
                scope = {}
                for cell in cells:
                    if cell["cell_type"] == "code":
                        exec(compile("".join(cell["source"]), name, "exec"), scope)


@unittest.skipUnless(THERE, "there is no command tofu")
@unittest.skipUnless(os.environ.get("TOFU_TEST_LINUX"), "TOFU_TEST_LINUX is not set")
class LinuxNodes(unittest.TestCase):
    def test_programs_run_with_input_output_and_codes(self):
        with open_tofu.Machine.start("--linux", "--nodes", "1") as machine:
            self.assertEqual(machine.exec(0, ["uname"], timeout=60).text, "Linux\n")
            sent = bytes(range(256)) * 4096
            program = ["sh", "-c", "cat; echo end >&2; exit 3"]
            done = machine.exec(0, program, input=sent, timeout=60)
            self.assertEqual((done.code, done.err), (3, b"end\n"))
            self.assertTrue(done.out == sent, f"{len(done.out)} bytes came back")
            with self.assertRaises(open_tofu.TimedOut):
                machine.exec(0, ["sleep", "100"], timeout=0.5)
            killed = machine.exec(0, ["sh", "-c", "kill -9 $$"], timeout=60)
            self.assertEqual((killed.code, killed.signal), (None, 9))


if __name__ == "__main__":
    unittest.main()
