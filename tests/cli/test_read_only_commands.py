"""Read-only commands change nothing, as the audit log of the server shows."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from phalanx.server.security.authorization import MASTERS
from tests.builders import gang
from tests.cli.cli_user import CliUser, gang_job
from tools.control_plane import ControlPlane


def test_read_only_commands_send_no_write(tmp_path: Path) -> None:
    log, file = tmp_path / "audit", tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all([gang_job("new", 2, cpu="3"), *gang("more", 2, cpu="9")]))
    with ControlPlane("--data", ":memory:", "--audit-log", str(log)) as plane:
        user = CliUser(plane.kubeconfig)
        codes = [
            user.run("what-if", "-f", str(file), "--drain", "node-0").returncode,
            user.run("queue").returncode,
            user.run("top").returncode,
        ]
    assert codes == [4, 0, 0]
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    # The one write creates the namespace.
    written = [row["verb"] for row in rows if MASTERS in row.get("groups", ())]
    assert written == ["create"]
