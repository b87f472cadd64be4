"""`pyromq …` in this process against a real broker, and dead letters to have."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner, Result

from admin.scene import bury, with_admin
from pyromq.admin.admin import Admin
from pyromq.cli.app import app


class Shell:
    """Runs commands as somebody does who has NAMESRV_ADDR set."""

    def __init__(self, name_servers: str) -> None:
        self.name_servers = name_servers

    def __call__(self, *arguments: str, answer: str = "", **environment: str) -> Result:
        variables = {"NAMESRV_ADDR": self.name_servers, "COLUMNS": "240", **environment}
        return CliRunner().invoke(app, list(arguments), input=answer, env=variables)

    def ok(self, *arguments: str) -> str:
        """What it prints. Fails, with that, when it fails."""
        result = self(*arguments)
        assert result.exit_code == 0, f"{arguments}\n{result.output}"
        return result.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "--json"))

    def lines(self, *arguments: str) -> list[Any]:
        return [json.loads(line) for line in self.ok(*arguments, "--json").splitlines()]

    def bury(self, topic: str, group: str) -> None:
        """Make dead letters of all that the topic has."""

        async def story(admin: Admin) -> None:
            for message in await admin.messages.peek(topic, count=1000):
                await bury(admin, group, message)

        with_admin(self.name_servers, story)
