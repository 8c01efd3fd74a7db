"""`python -I -S forked.py SOCKET PYTHON SCRIPT ARGUMENT...`: run the script in a fork of the server at SOCKET.

The server is `scenarios.forkserver`. The script gets this process's environment, folder and streams. Without a
server, PYTHON runs it. Returns when the process has ended. Only a little of the standard library is imported, because
this starts an interpreter each time.
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
            if text[sent:]:  # sending nothing fails as well where the script has ended already, and would run it again
                server.sendall(text[sent:])
        except OSError:  # the server has ended, or an import of it failed
            os.execv(python, [python, *argv])
        server.recv(1)  # returns at the end of the process, which holds the other side


if __name__ == "__main__":
    main()
