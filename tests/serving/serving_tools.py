"""A server as a person starts one, asked as a stranger would ask it."""

import http.client
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cli_tools import COMMAND


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Live:
    """A running `regard look`, or another command that prints ``page: ADDRESS`` once it answers."""

    def __init__(self, args: Sequence[str], command: Sequence[str] = (COMMAND, "look"), cwd: str | None = None) -> None:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process: subprocess.Popen[str] = subprocess.Popen([*command, *args], cwd=cwd, **streams)  # type: ignore[call-overload]
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("page: "):
            raise AssertionError(f"{line}{self.process.communicate(timeout=60)}")
        self.address = line.split()[1]
        self.port = int(self.address.split(":")[2].split("/")[0])

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def ask(
        self, path: str, body: Any = None, *, method: str | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """Send a request; a body that is not bytes is sent as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        method = method or ("GET" if data is None else "POST")
        given = {"Host": self.host, **({} if data is None else {"Content-Type": "application/json"}), **(headers or {})}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in given.items():
                connection.putheader(name, value)
            if data is not None and "Content-Length" not in given:
                connection.putheader("Content-Length", str(len(data)))
            connection.endheaders(data)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def stop(self) -> tuple[int, str]:
        """End it as `kill` does; give its exit code and what it said."""
        self.process.terminate()
        _, told = self.process.communicate(timeout=30)
        return self.process.returncode, told
