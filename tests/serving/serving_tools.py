"""A server as a person starts one, asked as a stranger would ask it."""

import http.client
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from cli_tools import COMMAND

from regard.data.pixels import Pixels
from regard.models.vit import Vit, VitConfig
from regard.tasks import folder
from regard.tasks.images.classifier import ImageClassifier
from regard.tasks.labeller import Classes


def write_vit(path: Path) -> None:
    """Write a classifier of images of 12 × 12 pixels."""
    torch.manual_seed(5)
    config = VitConfig((12, 12), num_classes=3, patch_size=4, embed_dim=16, num_layers=2, num_heads=2, mlp_dim=24)
    classes = Classes(("disc", "square", "<b>ring</b>"))
    folder.save(path, ImageClassifier(Vit(config), Pixels((12, 12), (0.5,) * 3, (0.25,) * 3), classes))


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

    def __init__(
        self, args: Sequence[str], command: Sequence[str] = (COMMAND, "look"), env: Mapping[str, str] | None = None
    ) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([*command, *args], env=env, stdout=pipe, stderr=pipe, text=True)
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
