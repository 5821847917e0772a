"""The launcher's ear: reports by kind, lines that ranks print, and what it says itself, in order."""

import os
import pickle
import socket

from launch.listener import Listener


def test_reports_and_lines_arrive_whole_and_nothing_is_lost():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    printed, output = os.pipe()
    steps, lines = [], []
    listener = Listener(ours, {"step": steps.append}, printed, lines.append)
    for step in range(300):
        theirs.send(pickle.dumps({"kind": "step", "step": step}))
        os.write(output, f"half of {step}".encode())
        os.write(output, b", and the rest\n")
    os.write(output, b"no end")
    listener.print("said by the launcher")
    assert [report["step"] for report in steps] == list(range(300))
    theirs.close()
    os.close(output)
    listener.close()
    text = "\n".join(lines).splitlines()
    assert text[:300] == [f"half of {step}, and the rest" for step in range(300)]
    assert text[300:] == ["said by the launcher", "no end"]
