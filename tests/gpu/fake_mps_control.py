"""Fake of nvidia-cuda-mps-control, with the faults that `behaviour.json` beside it asks for.

`-d` starts a daemon that writes a pid file and listens on a socket in CUDA_MPS_PIPE_DIRECTORY, with a
server beside it; without arguments it sends lines from standard input to that daemon.

behaviour.json, read anew for every command: `refuses` (start fails with this text), `takes_s` (start),
`never_up`, `quits` (false: quit hangs), `stubborn` (ignores SIGTERM), `answers` (text by command), `faulty`
(a server's number), `clients` (process numbers; of all servers), `serves` (number of servers listed), `deaf`
(no command is answered), `lives` (number of replies before the daemon dies, 0: before its start is over; its
server stays alive).
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(sys.argv[0]).resolve().parent
PIPE = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])


def behaviour():
    try:
        return json.loads((HERE / "behaviour.json").read_text())
    except (OSError, ValueError):
        return {}


def note(**what):
    with (HERE / "calls").open("a") as file:
        file.write(json.dumps(what) + "\n")


def answer(line, servers):
    ways = behaviour()
    command = line.split()[0]
    if command in ways.get("answers", {}):
        return ways["answers"][command]
    listed = servers * ways.get("serves", 1)
    if command == "get_server_list":
        return "".join(f"{pid}\n" for pid in listed)
    if command == "get_client_list":
        return "".join(f"{pid}\n" for pid in ways.get("clients", []))
    if command == "get_server_status":
        return "FAULT\n" if int(line.split()[1]) == ways.get("faulty") else "ACTIVE\n"
    return f"unknown command: {line}\n"


def serve(listening, server, pid_file):
    servers = [server.pid]
    answered = 0
    while True:
        if answered >= behaviour().get("lives", 1000):
            os._exit(1)
        answered += 1
        connection, _ = listening.accept()
        with connection:
            line = connection.makefile().readline().strip()
            note(asked=line)
            if behaviour().get("deaf"):
                time.sleep(60)
            if line.startswith("quit"):
                while not behaviour().get("quits", True):
                    time.sleep(60)
                server.kill()
                server.wait()
                pid_file.unlink(missing_ok=True)
                connection.sendall(b"\0")
                return
            connection.sendall(answer(line, servers).encode() + b"\0")


def daemon(told):
    os.setsid()
    ways = behaviour()
    time.sleep(ways.get("takes_s", 0))
    if ways.get("never_up"):
        time.sleep(60)
    if ways.get("stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server = subprocess.Popen([HERE / "nvidia-cuda-mps-server"], start_new_session=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(PIPE / "control"))
    listening.listen()
    pid_file = PIPE / "nvidia-cuda-mps-control.pid"
    pid_file.write_text(str(os.getpid()))
    environment = {name: value for name, value in os.environ.items() if name.startswith("CUDA_")}
    note(daemon=os.getpid(), server=server.pid, environment=environment)
    os.write(told, b"up")
    os.close(told)
    serve(listening, server, pid_file)


def start():
    refuses = behaviour().get("refuses")
    if refuses:
        sys.exit(refuses)
    hears, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(hears)
        daemon(told)
        os._exit(0)
    os.close(told)
    is_up = os.read(hears, 2) == b"up"
    if behaviour().get("lives") == 0:
        os.waitpid(child, 0)
    sys.exit(0 if is_up else 1)


def ask():
    for line in sys.stdin:
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(str(PIPE / "control"))
            except OSError:
                sys.exit("Cannot find MPS control daemon process")
            connection.sendall(line.encode())
            said = b""
            while not said.endswith(b"\0"):
                more = connection.recv(4096)
                if not more:
                    sys.exit("the daemon broke off")
                said += more
        sys.stdout.write(said[:-1].decode())


if __name__ == "__main__":
    if sys.argv[1:] == ["-d"]:
        start()
    else:
        ask()
