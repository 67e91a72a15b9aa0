"""Clients that attack a server: `python -m tests.server.hostile_clients TARGET SECONDS SEED`.

TARGET is a JSON object with the fields of `Target`. Several clients run at once. Each picks an
attack, runs it to its end or until it times out, and picks the next. The counts of all codes, by
attack, are printed as one JSON object at the end. Code 0: disconnected, or no reply in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import ssl
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import orjson
import uvloop

from phalanx.api.kinds import CONFIG_MAP, POD
from phalanx.api.wire import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH
from phalanx.server.serialization import MAX_BODY_BYTES
from tests.server.http_peers import Peer, request
from tests.server.test_fuzzing import KINDS, with_hostile_field
from tests.server.test_http_parser import BAD
from tests.server.test_malformed_headers import HEADERS, VALUES

#: Clients that attack at once, and seconds after which an attack ends.
CLIENTS, ATTACK_SECONDS = 12, 6.0
NAMESPACE = "hostile"
MAPS, PODS = CONFIG_MAP.url_path(NAMESPACE), POD.url_path(NAMESPACE)
VICTIM = f"{MAPS}/victim"


@dataclass(frozen=True, slots=True)
class Target:
    """The attacked server, and the token of a tenant that may edit its own namespace."""

    host: str
    port: int
    token: str
    #: All connections, which are closed after the attack.
    peers: list[Peer] = field(default_factory=list)

    async def connect(self, *, tls: bool = True) -> Peer:
        context = _trusting_context() if tls else None
        peer = Peer(*await asyncio.open_connection(self.host, self.port, ssl=context))
        self.peers.append(peer)
        return peer

    async def connect_all(self, count: int) -> list[Peer]:
        return await asyncio.gather(*(self.connect() for _ in range(count)))

    def close(self) -> None:
        while self.peers:
            self.peers.pop().disconnect()

    def request(self, method: str, path: str, *headers: str, body: bytes = b"") -> bytes:
        """The bytes of an authenticated request."""
        own = (f"Authorization: Bearer {self.token}", *headers)
        return request(method, path, *own, body=body).replace(b"Host: x", b"Host: localhost", 1)

    async def ask(self, *data: bytes) -> list[int]:
        """Send bytes on a new connection; return the code of the reply."""
        peer = await self.connect()
        peer.send(*data)
        code = await read_code(peer)
        self.close()
        return [code]

    async def send(self, method: str, path: str, body: Any, content_type: str = "") -> list[int]:
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        kind = (f"Content-Type: {content_type}",) if content_type else ()
        return await self.ask(self.request(method, path, *kind, body=data))


@cache
def _trusting_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def read_code(peer: Peer) -> int:
    """The code of the next reply; 0 if the server disconnects."""
    try:
        return (await peer.read_response()).code
    except (OSError, asyncio.IncompleteReadError):
        return 0


# ---- connections ---------------------------------------------------------------------------------


async def silent_connections(target: Target, rng: random.Random) -> list[int]:
    beginnings = (b"", b"\x16\x03\x01", b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP")
    for _ in range(100):
        (await target.connect(tls=False)).send(rng.choice(beginnings))
    await asyncio.sleep(1)
    return []


async def idle_connections(target: Target, rng: random.Random) -> list[int]:
    """Several such attacks at once open more connections than one user may have."""
    peers = await target.connect_all(80)
    for peer in peers:
        peer.send(target.request("GET", "/version"))
    codes = [await read_code(peer) for peer in peers]
    await asyncio.sleep(1)
    return codes


async def slow_requests(target: Target, rng: random.Random) -> list[int]:
    peers = await target.connect_all(10)
    for byte in target.request("POST", MAPS, "Content-Length: 1000000") + b" " * 50:
        for peer in peers:
            peer.send(bytes([byte]))
        await asyncio.sleep(0.002)
    return []


async def aborted_uploads(target: Target, rng: random.Random) -> list[int]:
    for peer in await target.connect_all(5):
        peer.send(target.request("POST", MAPS, f"Content-Length: {MAX_BODY_BYTES}"), b" " * 2**20)
        await peer.writer.drain()
    return []


async def unread_replies(target: Target, rng: random.Random) -> list[int]:
    (await target.connect()).send(target.request("GET", "/openapi/v3/api/v1") * 8)
    await asyncio.sleep(1)
    return []


async def pipelines(target: Target, rng: random.Random) -> list[int]:
    peer = await target.connect()
    peer.send(target.request("GET", f"{MAPS}?limit=1") * 100)
    return [await read_code(peer) for _ in range(100)]


async def watches(target: Target, rng: random.Random) -> list[int]:
    """Several such attacks at once open more watches than one user may have; they have bodies."""
    peers = await target.connect_all(40)
    for number, peer in enumerate(peers):
        version = rng.choice(("", "0", "1", "-1", "x", "9" * 30))
        query = f"watch=1&resourceVersion={version}&labelSelector=a%3D{number}"
        peer.send(target.request("GET", f"{MAPS}?{query}", body=b" " * 10_000))
    codes = [(await peer.read_head()).code for peer in peers]
    await asyncio.sleep(1)
    return codes


async def half_close(target: Target, rng: random.Random) -> list[int]:
    peer = await target.connect(tls=False)
    peer.send(rng.randbytes(rng.randrange(2000)))
    peer.writer.write_eof()
    await peer.read_rest()
    return []


# ---- headers -------------------------------------------------------------------------------------


async def malformed_headers(target: Target, rng: random.Random) -> list[int]:
    codes = []
    for _ in range(10):
        name, value = rng.choice(HEADERS), rng.choice(VALUES)
        data = target.request(rng.choice(("GET", "PATCH", "DELETE")), f"{MAPS}/x", body=b"{}")
        lines = [
            line
            for line in data.split(b"\r\n")
            if not line.lower().startswith(name.lower().encode() + b":")
        ]
        lines.insert(1, f"{name}: {value}".encode("latin-1"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                codes += await target.ask(b"\r\n".join(lines))
    return codes


async def malformed_requests(target: Target, rng: random.Random) -> list[int]:
    data = bytearray(rng.choice(tuple(BAD.values())))
    for _ in range(rng.randrange(4)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return await target.ask(bytes(data), b"\r\n\r\n")


async def large_heads(target: Target, rng: random.Random) -> list[int]:
    many = target.request("GET", "/version", *(f"X{n}: y" for n in range(10_000)))
    long = target.request("GET", "/version", f"X: {'y' * 2**21}")
    path = target.request("GET", "/" + "a/" * 2**16)
    return await target.ask(rng.choice((many, long, path)))


async def invalid_credentials(target: Target, rng: random.Random) -> list[int]:
    token = rng.choice(("wrong", target.token[:-4] + "AAAA", "a.b.c", "x" * 9000))
    head = request("POST", MAPS, f"Authorization: Bearer {token}", "Content-Length: 3000000")
    return await target.ask(head.replace(b"Host: x", b"Host: localhost"), b" " * 3_000_000)


# ---- bodies --------------------------------------------------------------------------------------

_DEEP = b'{"a":' * 100_000
_BOMB = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%b]\n" % (98 + n, 98 + n, b",".join([b"*%c" % (97 + n)] * 9)) for n in range(8)
)
BODIES: tuple[tuple[str, bytes], ...] = (
    ("application/json", _DEEP),
    ("application/json", b"[" * 1_000_000),
    ("application/json", b'{"a":' + b"9" * 1_000_000 + b"}"),
    ("application/json", b'{"data":{"a":' + b'"x",' * 500_000),
    ("application/json", b"{" + b",".join(b'"k%d":0' % n for n in range(150_000)) + b"}"),
    ("application/json", b'{"metadata":{"name":"\\ud800"}}'),
    ("application/json", b'\xef\xbb\xbf{"metadata":{}}'),
    ("application/json", b'{"metadata":{"name":"a","name":"b"},"data":NaN}'),
    ("application/json", b"\xff\xfe" * 1000),
    ("application/json", b" " * MAX_BODY_BYTES),
    ("application/yaml", _BOMB),
    ("application/yaml", b"a: " * 50_000),
    ("application/yaml", b"- " * 100_000),
    ("application/yaml", b"%TAG ! !\n--- !!python/object/apply:os.system [x]"),
    ("application/yaml", b"? " * 10_000),
    ("application/vnd.kubernetes.protobuf", b"k8s\x00" + b"\x0a\xff\xff\xff\xff\x0f" * 1000),
    ("application/vnd.kubernetes.protobuf", b"k8s\x00\x0a\x0a\x0a"),
    ("text/plain", b"{}"),
)


async def malformed_bodies(target: Target, rng: random.Random) -> list[int]:
    content_type, body = rng.choice(BODIES)
    return await target.send("POST", MAPS, body, content_type)


async def random_bodies(target: Target, rng: random.Random) -> list[int]:
    content_type = rng.choice(BODIES)[0]
    return await target.send("POST", MAPS, rng.randbytes(rng.randrange(20_000)), content_type)


async def oversized_bodies(target: Target, rng: random.Random) -> list[int]:
    piece = b"100000\r\n" + b" " * 2**20 + b"\r\n"
    chunked = target.request("POST", MAPS, "Transfer-Encoding: chunked") + piece * 4
    declared = target.request("POST", MAPS, "Content-Length: 4194304") + b" " * 2**22
    return await target.ask(rng.choice((chunked, declared)))


async def tiny_chunks(target: Target, rng: random.Random) -> list[int]:
    head = target.request("POST", MAPS, "Transfer-Encoding: chunked")
    return await target.ask(head, b"1\r\nx\r\n" * 50_000, b"0\r\n\r\n")


async def malformed_objects(target: Target, rng: random.Random) -> list[int]:
    """Objects of all kinds with hostile fields; nothing is stored."""
    codes = []
    for _ in range(5):
        kind, template = rng.choice(KINDS)
        path = kind.url_path(NAMESPACE if kind.namespaced else "")
        obj = with_hostile_field(template, rng)
        codes += await target.send("POST", f"{path}?dryRun=All", obj)
    return codes


async def many_objects(target: Target, rng: random.Random) -> list[int]:
    """Objects that are created and deleted again."""
    body = {"metadata": {"generateName": "x-"}, "data": {"a": "b" * rng.randrange(2_000)}}
    codes = [code for _ in range(5) for code in await target.send("POST", MAPS, body)]
    selector = "fieldSelector=metadata.name%21%3Dvictim"
    return codes + await target.send("DELETE", f"{MAPS}?{selector}", {})


# ---- patches and queries -------------------------------------------------------------------------

_GROWTH = [{"op": "add", "path": "/data/a", "value": "x" * 1000}] + [
    {"op": "copy", "from": "/data", "path": f"/data{n}"} for n in range(40)
]
PATCHES: tuple[tuple[str, Any], ...] = (
    (JSON_PATCH, [{"op": "test", "path": "/a", "value": 1}] * 10_001),
    (JSON_PATCH, [{"op": "add", "path": "/data/a", "value": "b"}] * 9_999),
    (JSON_PATCH, _GROWTH),
    (JSON_PATCH, [{"op": "move", "from": "/metadata", "path": "/metadata/labels"}]),
    (JSON_PATCH, [{"op": "remove", "path": ""}, {"op": "x"}, None, 5]),
    (JSON_PATCH, {"op": "add"}),
    (JSON_PATCH, b"[" * 100_000),
    (MERGE_PATCH, {"metadata": None}),
    (MERGE_PATCH, {"metadata": {"managedFields": [{"fieldsV1": {"f:a": 5}}]}}),
    (MERGE_PATCH, _DEEP),
    (MERGE_PATCH, {"data": {f"k{n}": "v" for n in range(20_000)}}),
    (STRATEGIC_PATCH, {"$patch": "replace", "metadata": {"$retainKeys": 5}}),
    (STRATEGIC_PATCH, {"metadata": {"$deleteFromPrimitiveList/finalizers": {}}}),
    (APPLY_PATCH, b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}"),
    (APPLY_PATCH, _BOMB),
    ("application/json", {}),
)
QUERIES = (
    "limit=abc", "limit=-1", "limit=9" + "9" * 30, "continue=%00", "continue=" + "A" * 5000,
    "labelSelector=" + "a," * 3000, "labelSelector=a+in+(" + "b," * 2000, "fieldSelector=x%3Dy",
    "fieldSelector=" + "metadata.name%3Dx," * 300, "resourceVersion=x", "timeoutSeconds=-1",
    "watch=maybe", "&".join(["a=b"] * 1900), "resourceVersionMatch=Exact", "dryRun=Some",
    "fieldManager=" + "%ff" * 100, "propagationPolicy=x", "pretty=%0d%0a", "%zz", "=&=&", "a[]=1",
)  # fmt: skip


async def malformed_patches(target: Target, rng: random.Random) -> list[int]:
    content_type, patch = rng.choice(PATCHES)
    query = rng.choice(("", "?dryRun=All", "?fieldManager=x&force=true", "?fieldValidation=Strict"))
    return await target.send("PATCH", VICTIM + query, patch, content_type)


async def malformed_queries(target: Target, rng: random.Random) -> list[int]:
    codes = []
    for _ in range(5):
        path, query = rng.choice((MAPS, PODS, VICTIM, "/apis", "/ui/x")), rng.choice(QUERIES)
        codes += await target.ask(target.request(rng.choice(("GET", "DELETE")), f"{path}?{query}"))
    await target.send("POST", MAPS, {"metadata": {"name": "victim"}})
    return codes


Attack = Callable[[Target, random.Random], Awaitable[list[int]]]
ATTACKS: tuple[Attack, ...] = (
    silent_connections, idle_connections, slow_requests, aborted_uploads, unread_replies, pipelines,
    watches, half_close, malformed_headers, malformed_requests, large_heads, invalid_credentials,
    malformed_bodies, random_bodies, oversized_bodies, tiny_chunks, malformed_objects, many_objects,
    malformed_patches, malformed_queries,
)  # fmt: skip


async def attack_repeatedly(
    target: Target, rng: random.Random, until: float, codes: dict[str, Counter[int]]
) -> None:
    """Pick attacks at random until the time is over; every error of the network is expected."""
    own = replace(target, peers=[])
    while (left := until - time.monotonic()) > 0:
        attack = rng.choice(ATTACKS)
        name = getattr(attack, "__name__", "")
        try:
            async with asyncio.timeout(min(left, ATTACK_SECONDS)):
                codes.setdefault(name, Counter()).update(await attack(own, rng))
        except (OSError, asyncio.IncompleteReadError):
            codes[name][0] += 1
        own.close()


async def run_attacks(target: Target, seconds: float, seed: int) -> dict[str, Counter[int]]:
    """Attack with several clients at once; return the counts of codes by attack."""
    until, codes = time.monotonic() + seconds, dict[str, Counter[int]]()
    async with asyncio.TaskGroup() as group:
        for number in range(CLIENTS):
            rng = random.Random(seed * CLIENTS + number)
            group.create_task(attack_repeatedly(target, rng, until, codes))
    return codes


if __name__ == "__main__":
    _, where, duration, number = sys.argv
    counts = uvloop.run(run_attacks(Target(**json.loads(where)), float(duration), int(number)))
    json.dump({name: dict(sorted(found.items())) for name, found in counts.items()}, sys.stdout)
