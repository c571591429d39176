"""Harbor's environment as plain processes of this machine, its absolute paths under one folder.

`job/` was made with it and Harbor 0.26.0 on Python 3.12, in three attempts at one task: a right one, a wrong one, and
one whose test gave no reward:

    PYTHONPATH=. harbor run -p TASK -e here:Here -a oracle -k 3 -n 1 -r 0 -o jobs --job-name real -y
"""

# mypy: ignore-errors

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities


class Here(BaseEnvironment):
    @staticmethod
    def type() -> str:
        return "here"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities()

    def _validate_definition(self) -> None:
        pass

    def _root(self) -> Path:
        return self.trial_paths.trial_dir.resolve().parent / f".root-{self.trial_paths.trial_dir.name}"

    def _at(self, path: str) -> Path:
        return self._root() / str(path).lstrip("/")

    async def start(self, force_build: bool) -> None:
        for folder in ("app", "logs/agent", "logs/verifier", "logs/artifacts", "tests", "solution"):
            self._at(folder).mkdir(parents=True, exist_ok=True)

    async def stop(self, delete: bool) -> None:
        shutil.rmtree(self._root(), ignore_errors=True)

    async def upload_file(self, source_path: Any, target_path: str) -> None:
        self._at(target_path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source_path, self._at(target_path))

    async def upload_dir(self, source_dir: Any, target_dir: str) -> None:
        shutil.copytree(source_dir, self._at(target_dir), dirs_exist_ok=True)

    async def download_file(self, source_path: str, target_path: Any) -> None:
        shutil.copy(self._at(source_path), target_path)

    async def download_dir(self, source_dir: str, target_dir: Any) -> None:
        shutil.copytree(self._at(source_dir), target_dir, dirs_exist_ok=True)

    async def exec(self, command, cwd=None, env=None, timeout_sec=None, user=None, **more) -> ExecResult:
        for name in ("/logs", "/tests", "/solution"):
            command = command.replace(name, str(self._root()) + name)
        for script in [*self._at("tests").rglob("*.sh"), *self._at("solution").rglob("*.sh")]:
            text = script.read_text()
            if str(self._root()) not in text:
                script.write_text(text.replace("/logs", f"{self._root()}/logs"))
        p = await asyncio.create_subprocess_shell(
            command,
            cwd=self._at(cwd or "app"),
            env={**os.environ, **(env or {})},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            executable="/bin/bash",
        )
        out, err = await asyncio.wait_for(p.communicate(), timeout_sec)
        return ExecResult(stdout=out.decode(), stderr=err.decode(), return_code=p.returncode or 0)
