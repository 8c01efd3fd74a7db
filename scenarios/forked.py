"""`python -I -S forked.py SOCKET PYTHON SCRIPT ARGUMENT...`: run the script in a fork of the server at SOCKET
(`scenarios.forkserver`), with this process's environment, folder and streams; where there is none, by PYTHON itself.

Returns when the process has ended. Standard library only, and little of it: this is an interpreter's start each time.
"""

import json
import os
import socket
import sys


def main() -> None:
    address, python, *argv = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(address)
            order = {"argv": argv, "environ": dict(os.environ), "folder": os.getcwd()}
            text = json.dumps(order).encode() + b"\n"
            sent = socket.send_fds(server, [text], [0, 1, 2])
            server.sendall(text[sent:])
        except OSError:  # it has ended, or could not import
            os.execv(python, [python, *argv])
        server.recv(1)  # the end of the process, which holds the other side


if __name__ == "__main__":
    main()
