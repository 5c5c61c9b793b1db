"""Two servers under Patroni, with etcd, and HAProxy in front, as deploy/ configures them.

Everything is private: it works below the directories of the servers, and ends with them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeAlias, final

import bootstrap
import yaml
from pgfind import ServerError, copy_open, is_open_to_all
from pgserver import PATIENCE, Server, find_account, find_free_port

from tests.chaos.stage import find_version
from tests.python.proxy import Proxy
from tests.python.sessions import Dsn, dsn_of

Settings: TypeAlias = Mapping[str, Any]

LOCAL: Final = "127.0.0.1"
DEPLOY: Final = bootstrap.ROOT / "deploy"
# Patroni decides whom the standby follows.
_STANDBY: Final = {"fsync": "off", "primary_conninfo": ""}


@final
class Node:
    """A member of a cluster, whose server Patroni starts, stops and promotes.

    The other node and HAProxy reach the server and its Patroni through proxies, and so does Patroni
    reach etcd. Clients with `Cluster.dsn` do not need the proxies.
    """

    def __init__(self, name: str, server: Server, etcd: int, settings: Settings) -> None:
        self.name = name
        self.server = server
        self.rest = find_free_port()
        self.log = server.directory / "patroni.log"
        self._to_etcd = Proxy({"host": LOCAL, "port": etcd})
        self._to_server = Proxy(dsn_of(server))
        self._to_rest = Proxy({"host": LOCAL, "port": self.rest})
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Node:
        """Open the ways to it, and start Patroni."""
        with contextlib.ExitStack() as stack:
            for way in (self._to_etcd, self._to_server, self._to_rest):
                stack.enter_context(way)
            stack.callback(self.stop)
            home = self.server.directory / "python"
            copy_open(bootstrap.fetch_patroni().parent, [bootstrap.PATRONI.name], home)
            self._write_configuration()
            self.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop Patroni and its server."""
        self._stack.close()

    def start(self) -> None:
        """Start Patroni, which starts the server."""
        home = self.server.directory / "python" / bootstrap.PATRONI.name
        command: list[str | Path] = [
            _find_python(),
            "-m",
            "patroni",
            self.server.directory / "patroni.yaml",
        ]
        environment = {
            "HOME": self.server.host,  # gets .pgpass
            "PATH": os.environ.get("PATH", os.defpath),
            "PYTHONPATH": str(home),
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.server.directory,
                env=environment,
                start_new_session=True,
                **find_account(),
            )

    def stop(self) -> None:
        """Stop Patroni, which stops the server."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(PATIENCE)

    def kill(self) -> None:
        """Kill Patroni and all processes of the server with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self.server.stop("kill")
        self._process.wait()
        self._process = None

    @property
    def has_failed(self) -> bool:
        """Whether Patroni has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def hold(self, *, etcd: bool) -> None:
        """Let nothing pass from the other node and HAProxy, nor to etcd if that is asked for."""
        for way in (self._to_server, self._to_rest, *([self._to_etcd] if etcd else [])):
            way.hold(up=True, down=True)

    def heal(self) -> None:
        """Let everything pass again; what was held is lost."""
        for way in (self._to_server, self._to_rest, self._to_etcd):
            way.cut()
            way.heal()

    @property
    def ports(self) -> tuple[int, int]:
        """The ports by which others reach its server and its Patroni."""
        return self._to_server.dsn["port"], self._to_rest.dsn["port"]

    def ask(self, path: str, body: Settings | None = None) -> tuple[int, str]:
        """Return status and answer of Patroni; the status is 0 if there is no answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{LOCAL}:{self.rest}{path}", data=data)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def logged(self, text: str) -> int:
        """Return how often the log of Patroni and its server has a text."""
        return self.log.read_text(encoding="utf-8", errors="replace").count(text)

    def _write_configuration(self) -> None:
        """Write the configuration of deploy/ with the addresses of this node."""
        text = (DEPLOY / "patroni" / "patroni.yaml").read_text(encoding="utf-8")
        configuration = yaml.safe_load(text)
        server, rest = self.ports
        user = {"username": self.server.user, "password": self.server.password}
        configuration["name"] = self.name
        configuration["restapi"] = {
            "listen": f"{LOCAL}:{self.rest}",
            "connect_address": f"{LOCAL}:{rest}",
        }
        # Without use_proxies Patroni asks etcd for its addresses, and takes those.
        configuration["etcd3"] = {
            "host": f"{LOCAL}:{self._to_etcd.dsn['port']}",
            "use_proxies": True,
        }
        configuration["bootstrap"]["dcs"] |= self._settings
        configuration["postgresql"] |= {
            "listen": f"{LOCAL}:{self.server.port}",
            "connect_address": f"{LOCAL}:{server}",
            "data_dir": str(self.server.data),
            "bin_dir": str(self.server.bin),
            "use_unix_socket": True,
            "parameters": {"unix_socket_directories": self.server.host},
            "authentication": dict.fromkeys(("superuser", "replication", "rewind"), user),
        }
        path = self.server.directory / "patroni.yaml"
        path.write_text(yaml.safe_dump(configuration), encoding="utf-8")
        path.chmod(0o644)


@final
class Cluster:
    """Two nodes and etcd, for as long as a `with` block lasts.

    `prepare` gets the first server before Patroni does; `settings` replace those of
    `bootstrap.dcs`. On entering, a leader is there, and a standby that follows.
    """

    def __init__(self, prepare: Callable[[Server], object], **settings: Any) -> None:
        self._prepare = prepare
        # It is started sooner with short turns.
        self._settings = {"loop_wait": 2, **settings}

    def __enter__(self) -> Cluster:
        """Start everything."""
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(Server(find_version(), {"fsync": "off"}))
            self._prepare(first)
            second = stack.enter_context(Server(settings=_STANDBY, primary=first))
            second.stop()
            first.stop()
            self._directory = first.directory
            etcd = self._start_etcd(stack)
            self.nodes: list[Node] = []
            for name, server in zip("ab", (first, second), strict=True):
                node = Node(name, server, etcd, self._settings)
                self.nodes.append(stack.enter_context(node))
                # The first one has the newest data, and so it is to be the leader.
                _wait("no leader", self.leader, self.nodes)
            self.wait_until_whole()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop everything."""
        self._stack.close()

    @property
    def dsn(self) -> Dsn:
        """Connection arguments that lead to the node that takes writes."""
        servers = [node.server for node in self.nodes]
        return {
            **dsn_of(servers[0]),
            "host": [LOCAL for _ in servers],
            "port": [server.port for server in servers],
            "target_session_attrs": "read-write",
        }

    def leader(self) -> Node | None:
        """Return the node whose Patroni holds the leader's lock."""
        return next((node for node in self.nodes if node.ask("/primary")[0] == 200), None)

    def roles(self) -> tuple[Node, Node]:
        """Return the leader and the other node, once there is a leader."""
        leader = _wait("no leader", self.leader, self.nodes)
        return leader, next(node for node in self.nodes if node is not leader)

    def wait_until_whole(self) -> None:
        """Wait until the standby follows the leader, as its synchronous standby if there is one."""
        role = "sync_standby" if self._settings.get("synchronous_mode", True) else "replica"

        def is_whole() -> bool:
            members = self._members()
            return any(one["role"] == role and one["state"] == "streaming" for one in members)

        _wait("no standby that follows", is_whole, self.nodes)

    def lag(self) -> int:
        """Return how many bytes of the log the standby lacks, as far as the leader has told."""
        return max((int(one.get("lag", 0)) for one in self._members()), default=0)

    def switch_over(self) -> None:
        """Have the nodes change their roles."""
        leader, other = self.roles()
        status, answer = leader.ask("/switchover", {"leader": leader.name, "candidate": other.name})
        if status != 200:
            raise ServerError(f"Patroni: {status} {answer}")

    @contextlib.contextmanager
    def haproxy(self) -> Generator[Dsn]:
        """Run HAProxy as deploy/ configures it, and yield connection arguments that lead to it."""
        port = find_free_port()
        text = (DEPLOY / "haproxy" / "haproxy.cfg").read_text(encoding="utf-8")
        text = text.replace("bind *:5000", f"bind {LOCAL}:{port}")
        for node in self.nodes:
            text = re.sub(
                rf"{node.name}\.internal:5432 check port 8008",
                "{}:{} check port {}".format(LOCAL, *node.ports),
                text,
            )
        assert ".internal" not in text
        path = self._directory / "haproxy.cfg"
        path.write_text(text, encoding="utf-8")
        program, libraries = bootstrap.fetch_haproxy()
        places = os.pathsep.join(sorted({str(library.parent) for library in libraries}))
        process = self._run(
            "haproxy", [program, "-db", "-f", path], {"LD_LIBRARY_PATH": places} if places else {}
        )
        try:
            yield {**dsn_of(self.nodes[0].server), "host": LOCAL, "port": port}
        finally:
            process.terminate()
            process.wait(PATIENCE)

    def _members(self) -> list[dict[str, Any]]:
        """Return what the leader says of both nodes."""
        leader = self.leader()
        status, answer = leader.ask("/cluster") if leader else (0, "")
        members: list[dict[str, Any]] = json.loads(answer)["members"] if status == 200 else []
        return members

    def _start_etcd(self, stack: contextlib.ExitStack) -> int:
        """Start an etcd of one member, and return its port."""
        port = find_free_port()
        peer = f"http://{LOCAL}:{find_free_port()}"
        client = f"http://{LOCAL}:{port}"
        command: list[str | Path] = [
            bootstrap.fetch_etcd(),
            "--data-dir=etcd",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        ]
        process = self._run("etcd", command, {"ETCD_UNSUPPORTED_ARCH": "arm64"})
        stack.callback(process.wait)
        stack.callback(process.kill)
        _wait("etcd does not answer", lambda: _is_ready(client), ())
        return port

    def _run(
        self, name: str, command: Sequence[str | Path], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start a program below the directory of the first server, with which it ends."""
        with (self._directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                env={**os.environ, **environment},
            )


def _find_python() -> Path:
    """Return a Python that the user of the servers can run, of the version at hand."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    candidates = [Path(sys.executable).resolve(), Path("/usr/bin") / version]
    for candidate in candidates:
        if candidate.exists() and (os.geteuid() != 0 or is_open_to_all(candidate)):
            return candidate
    raise ServerError(f"others than root cannot run {candidates[0]}: install {version}")


def _is_ready(etcd: str) -> bool:
    """Tell whether etcd has agreed on a version, without which Patroni ends."""
    with (
        contextlib.suppress(OSError),
        urllib.request.urlopen(f"{etcd}/version", timeout=PATIENCE) as answer,
    ):
        return b"not_decided" not in answer.read()
    return False


def _wait(problem: str, condition: Callable[[], Any], nodes: Sequence[Node]) -> Any:
    """Return what the condition returns, once that is true."""
    deadline = time.monotonic() + PATIENCE
    while not (answer := condition()):
        if time.monotonic() > deadline or any(node.has_failed for node in nodes):
            logs = [node.log.read_text(encoding="utf-8")[-2000:] for node in nodes]
            raise ServerError("\n".join([problem, *logs]))
        time.sleep(0.1)
    return answer
