"""An MCP server that misbehaves on order. Standard library only; the script says what to do.

Usage: ``mcp_server.py SCRIPT.json``. The script: ``era`` ("legacy" or "modern"), ``name``, ``version``, ``tools`` (a
list) or ``tools_text`` (raw JSON text of the array), ``effects`` (a file that calls append their mark to), ``calls``
(what each tool does). ``SIGUSR1`` reads the script again and announces that the list changed.
"""

import json
import os
import signal
import sys
import threading

LOCK = threading.Lock()


def out(message):
    raw(json.dumps(message))


def raw(text):
    with LOCK:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def effect(script, mark):
    with open(script["effects"], "a") as file:
        file.write(mark + "\n")


def answer(request, result):
    out({"jsonrpc": "2.0", "id": request["id"], "result": {"resultType": "complete", **result}})


def text(request, words, **more):
    answer(request, {"content": [{"type": "text", "text": words}], **more})


def call(script, request):
    name = request["params"]["name"]
    do = script.get("calls", {}).get(name, {"do": "echo"})
    if do.get("effect", True) and "effects" in script:
        effect(script, name)
    DO[do["do"]](request, do)


def close(request, do):
    os.close(1)
    threading.Event().wait()


def big(request, do):
    """A result of many megabytes whose id stands first, last or nowhere."""
    identity = f'"jsonrpc":"2.0","id":{request["id"]}'
    before, after = {"first": ("{" + identity + ",", "}"), "last": ("{", "," + identity + "}"), "none": ("{", "}")}[
        do["id"]
    ]
    with LOCK:
        sys.stdout.write(before + '"result":{"content":[{"type":"text","text":"')
        for _ in range(do["megabytes"]):
            sys.stdout.write("a" * 1_000_000)
        sys.stdout.write('"}]}' + after + "\n")
        sys.stdout.flush()


def wait_for_cancellation(request, do):
    ASKED[request["id"]] = request


def progress(request, do):
    token = request["params"]["_meta"]["progressToken"]
    for done in (1, 2):
        params = {"progressToken": token, "progress": done, "total": 2, "message": f"step {done}"}
        out({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
    text(request, "done")


def elicit(request, do):
    ASKED["e-1"] = request
    out({"jsonrpc": "2.0", "id": "e-1", "method": "elicitation/create", "params": do["params"]})


def legs(request, do):
    given = request["params"].get("inputResponses")
    if given is None:
        asked = {"q": {"method": "elicitation/create", "params": do["params"]}}
        answer(request, {"resultType": "input_required", "inputRequests": asked, "requestState": "s-1"})
    else:
        text(request, json.dumps({"answers": given, "state": request["params"].get("requestState")}))


def hexadecimal(request, do):
    """Bytes as they are, with the request's id in place of ``@ID@``; ``then`` ends the process."""
    with LOCK:
        sys.stdout.flush()
        data = bytes.fromhex(do["bytes"]).replace(b"@ID@", json.dumps(request["id"]).encode())
        for _ in range(do.get("times", 1)):
            os.write(1, data)
    if do.get("then") == "die":
        os._exit(9)


def flood(request, do):
    """Many lines, or much on standard error, and then the answer."""
    with LOCK:
        for _ in range(do["times"]):
            getattr(sys, do["stream"]).write(do["line"] + "\n")
        sys.stdout.flush()
        sys.stderr.flush()
    text(request, "after the flood")


DO = {
    "bytes": hexadecimal,
    "flood": flood,
    "echo": lambda request, do: text(request, json.dumps(request["params"].get("arguments"))),
    "result": lambda request, do: answer(request, do["result"]),
    "error": lambda request, do: out({"jsonrpc": "2.0", "id": request["id"], "error": do["error"]}),
    "die": lambda request, do: os._exit(9),
    "close": close,
    "hang": lambda request, do: None,
    "raw": lambda request, do: raw(do["text"].replace("@ID@", json.dumps(request["id"]))),
    "big": big,
    "environment": lambda request, do: text(request, json.dumps(dict(os.environ))),
    "wait-then-answer": wait_for_cancellation,
    "progress": progress,
    "elicit": elicit,
    "legs": legs,
}

ASKED = {}


def handle(script, message):
    method = message.get("method")
    if method == "initialize":
        info = {"name": script.get("name", "victim"), "version": script.get("version", "1")}
        capabilities = {"tools": {"listChanged": True}}
        result = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
        out({"jsonrpc": "2.0", "id": message["id"], "result": result})
    elif method == "server/discover":
        if script.get("era", "legacy") == "legacy":
            out({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
        else:
            info = {"name": script.get("name", "victim"), "version": script.get("version", "1")}
            meta = {"io.modelcontextprotocol/serverInfo": info}
            found = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "_meta": meta}
            answer(message, {**found, "ttlMs": 0, "cacheScope": "private"})
    elif method == "tools/list":
        listed(script, message)
    elif method == "tools/call":
        call(script, message)
    elif method == "notifications/cancelled":
        late = ASKED.pop(message["params"]["requestId"], None)
        if late is not None:
            text(late, "too late")
            effect(script, "answered-late")
    elif method is None and message.get("id") == "e-1":
        text(ASKED.pop("e-1"), json.dumps(message.get("result") or message.get("error")))


def listed(script, message):
    tools = script.get("tools_text") or json.dumps(script.get("tools", []))
    pages = script.get("pages")
    if pages:
        at = int((message.get("params") or {}).get("cursor") or 0)
        more = f',"nextCursor":"{at + 1}"' if at + 1 < len(pages) or script.get("endless") else ""
        tools = json.dumps(pages[min(at, len(pages) - 1)])
    else:
        more = ""
    head = '{"jsonrpc":"2.0","id":' + json.dumps(message["id"]) + ',"result":{"tools":' + tools + more
    raw(head + ',"ttlMs":0,"cacheScope":"private","resultType":"complete"}}')


def main():
    script = {}

    def load(*_):
        with open(sys.argv[1]) as file:
            script.clear()
            script.update(json.load(file))
        if _:
            out({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})

    load()
    signal.signal(signal.SIGUSR1, load)
    if "pid" in script:
        with open(script["pid"], "w") as file:
            file.write(str(os.getpid()))
    for line in sys.stdin:
        handle(script, json.loads(line))


main()
