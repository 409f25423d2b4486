"""What is said to the raw agent and what it answers, byte for byte: one interaction for each thing that could get lost.

``$T`` and ``$C`` in an answer stand for the ids that the agent gives to task and context.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DETAIL: Final = (
    '{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"OWN_REASON","domain":"agent.example",'
    '"metadata":{"field":"parts"}}'
)


@dataclass(frozen=True, slots=True)
class Interaction:
    """One call: members of the message, of the params, and the bytes of the answer.

    ``result`` is the result of a unary call, ``frames`` those of a stream, ``error`` a JSON-RPC error.
    """

    name: str
    parts: str = '[{"text":"hi"}]'
    message: str = ""
    params: str = ""
    result: str = ""
    frames: tuple[str, ...] = ()
    error: str = ""
    follows: bool = False
    """Whether it answers a question that the agent asked first."""


def done(members: str = "", status: str = "", artifacts: str = "") -> str:
    """A Task that is complete, with further members."""
    held = f',"artifacts":[{artifacts}]' if artifacts else ""
    return (
        '{"task":{"id":"$T","contextId":"$C","status":{"state":"TASK_STATE_COMPLETED",'
        f'"timestamp":"2026-01-02T03:04:05.678Z"{status}}}{held}{members}}}}}'
    )


def artifact(parts: str, members: str = "") -> str:
    """An artifact."""
    return f'{{"artifactId":"a1","parts":{parts}{members}}}'


def update(kind: str, inner: str) -> str:
    """An update event of a stream."""
    return f'{{"{kind}":{{"taskId":"$T","contextId":"$C",{inner}}}}}'


def chunk(parts: str, members: str = "") -> str:
    """An update of the artifact."""
    return update("artifactUpdate", f'"artifact":{{"artifactId":"a1","parts":{parts}}}{members}')


def moved(state: str, members: str = "", update_members: str = "") -> str:
    """A status update."""
    inner = (
        f'"status":{{"state":"TASK_STATE_{state}","timestamp":"2026-01-02T03:04:05.678Z"{members}}}'
    )
    return update("statusUpdate", inner + update_members)


def saying(message_id: str, text: str) -> str:
    """The member of a status with the agent's message."""
    return f',"message":{{"messageId":"{message_id}","role":"ROLE_AGENT","parts":[{{"text":"{text}"}}]}}'


WORKING: Final = (
    '{"task":{"id":"$T","contextId":"$C","status":{"state":"TASK_STATE_WORKING",'
    '"timestamp":"2026-01-02T03:04:05.678Z"}}}'
)
QUESTION: Final = (
    '{"task":{"id":"$T","contextId":"$C","status":{"state":"TASK_STATE_INPUT_REQUIRED","timestamp":'
    '"2026-01-02T03:04:05.678Z","message":{"messageId":"q1","role":"ROLE_AGENT","parts":[{"text":"which?"}],'
    '"taskId":"$T","contextId":"$C"}}}}'
)
_PARTS: Final[dict[str, str]] = {
    "text": '[{"text":"plain words"}]',
    "empty text": '[{"text":""}]',
    "NUL": '[{"text":"a\\u0000b"}]',
    "emoji and right to left": '[{"text":"\\ud83d\\ude80 \\u202e\u05e9\u05dc\u05d5\u05dd \u0645\u0631"}]',
    "long text": '[{"text":"' + "word " * 20_000 + '"}]',
    "escapes": '[{"text":"\\"\\\\\\/\\b\\f\\n\\r\\t"}]',
    "object": '[{"data":{"a":{"b":[1,{"c":null}]},"":{}}}]',
    "list": '[{"data":[1,"two",null,[]]}]',
    "string": '[{"data":"words"}]',
    "true": '[{"data":true}]',
    "null": '[{"data":null}]',
    "zero": '[{"data":0}]',
    "64 bits": '[{"data":{"n":12345678901234567890,"m":-9223372036854775808}}]',
    "1.0 is not 1": '[{"data":{"a":1.0,"b":1,"c":-0.5,"d":0.1}}]',
    "file": '[{"raw":"AAECAw==","filename":"f.bin","mediaType":"application/octet-stream"}]',
    "url": '[{"url":"https://e.example/f?a=1&b=2#c","filename":"f","mediaType":"image/png"}]',
    "metadata of a part": '[{"text":"x","metadata":{"deep":{"n":[1.0,2]},"urn:x":true}}]',
    "many parts": '[{"text":"a"},{"data":{"b":1}},{"raw":"AA==","filename":"c"},{"url":"https://d.example/"},{"text":"e"}]',
    "unknown member of a part": '[{"text":"x","future":{"kind":1.0}}]',
}

INTERACTIONS: Final[tuple[Interaction, ...]] = (
    *(
        Interaction(f"parts: {name}", parts=parts, result=done(artifacts=artifact(parts)))
        for name, parts in _PARTS.items()
    ),
    *(
        Interaction(f"answer with parts: {name}", parts=_PARTS[name], result=done(), follows=True)
        for name in ("object", "64 bits", "1.0 is not 1", "file", "url", "many parts")
    ),
    Interaction("message: metadata", message=',"metadata":{"a":{"b":[1.0,null]}}', result=done()),
    Interaction("message: extensions", message=',"extensions":["urn:example:ext:one"]', result=done()),
    Interaction("message: unknown member", message=',"future":{"a":1.0}', result=done()),
    Interaction("request: metadata", params=',"metadata":{"rm":1.0}', result=done()),
    Interaction(
        "request: acceptedOutputModes",
        params=',"configuration":{"acceptedOutputModes":["text/plain","x/y"]}',
        result=done(),
    ),
    Interaction("request: metadata of an answer", params=',"metadata":{"rm":1}', result=done(), follows=True),
    Interaction(
        "request: acceptedOutputModes of an answer",
        params=',"configuration":{"acceptedOutputModes":["text/plain"]}',
        result=done(),
        follows=True,
    ),
    Interaction("answer: metadata of the message", message=',"metadata":{"a":1.0}', result=done(), follows=True),
    Interaction("task: metadata", result=done(',"metadata":{"m":{"n":1.0,"i":7}}')),
    Interaction("task: unknown members", result=done(',"generation":"17","future":[1.0]')),
    Interaction("status: unknown member", result=done(status=',"future":{"x":1.0}')),
    Interaction(
        "status: message",
        result=done(
            status=',"message":{"messageId":"s1","role":"ROLE_AGENT","parts":[{"text":"all done"}],'
            '"metadata":{"k":1.0},"extensions":["urn:example:ext:one"],"taskId":"$T","contextId":"$C"}'
        ),
    ),
    Interaction(
        "artifact: every member",
        result=done(
            artifacts=artifact(
                '[{"text":"x"}]',
                ',"name":"n","description":"d","metadata":{"m":1.0},"extensions":["urn:example:ext:one"],"future":1.0',
            )
        ),
    ),
    Interaction(
        "artifact: several",
        result=done(artifacts='{"artifactId":"b","parts":[{"text":"1"}]},' + artifact('[{"text":"2"}]')),
    ),
    Interaction(
        "bare message",
        result='{"message":{"messageId":"r1","role":"ROLE_AGENT","parts":[{"text":"yes"},{"data":1.0}],'
        '"contextId":"$C","metadata":{"m":1.0},"extensions":["urn:example:ext:one"],"future":{"f":1}}}',
    ),
    Interaction(
        "time: offset",
        result=done().replace("2026-01-02T03:04:05.678Z", "2026-01-02T03:04:05.678+02:00"),
    ),
    Interaction(
        "time: nanoseconds",
        result=done().replace("2026-01-02T03:04:05.678Z", "2026-01-02T03:04:05.123456789Z"),
    ),
    Interaction("time: none", result=done().replace(',"timestamp":"2026-01-02T03:04:05.678Z"', "")),
    *(
        Interaction(
            f"error {code}",
            error=f'{{"code":{code},"message":"said by the agent","data":[{DETAIL}]}}',
        )
        for code in (-32600, -32602, -32603, -32050, -32004, -32005)
    ),
    Interaction("error of an answer", error=f'{{"code":-32602,"message":"not this","data":[{DETAIL}]}}', follows=True),
    Interaction(
        "artifact: without name in a stream of one frame",
        frames=(done(artifacts=artifact('[{"data":{"n":1.0}}]')),),
    ),
    Interaction("error without data", error='{"code":-32603,"message":"boom"}'),
    Interaction("stream: chunks", frames=(
        WORKING,
        chunk('[{"text":"one "}]', ',"append":false,"lastChunk":false'),
        chunk('[{"text":"two "}]', ',"append":true'),
        chunk('[{"text":"three"}]', ',"append":true,"lastChunk":true'),
        moved("COMPLETED"),
    )),
    Interaction("artifact: no id", result=done(artifacts='{"parts":[{"text":"x"}]}')),
    Interaction("stream: artifact without an id", frames=(
        WORKING,
        update("artifactUpdate", '"artifact":{"name":"n","parts":[{"text":"x"}]}'),
        moved("COMPLETED"),
    )),
    Interaction("stream: artifact replaced", frames=(
        WORKING,
        chunk('[{"text":"first"}]'),
        chunk('[{"data":{"n":1.0}}]', ',"lastChunk":true'),
        moved("COMPLETED"),
    )),
    Interaction("stream: metadata of a status update", frames=(
        WORKING, moved("COMPLETED", update_members=',"metadata":{"u":1.0}'),
    )),
    Interaction("stream: metadata of an artifact update", frames=(
        WORKING,
        chunk('[{"text":"x"}]', ',"metadata":{"au":1.0},"lastChunk":true'),
        moved("COMPLETED"),
    )),
    Interaction("stream: unknown members", frames=(
        WORKING,
        chunk('[{"text":"x"}]', ',"future":1.0,"lastChunk":true'),
        moved("COMPLETED", update_members=',"generation":"3"'),
    )),
    Interaction("stream: message beside the state", frames=(
        WORKING,
        moved("WORKING", ',"message":{"messageId":"w1","role":"ROLE_AGENT","parts":[{"text":"half way"}]}'),
        moved("COMPLETED"),
    )),
    Interaction("stream: a message and nothing else", frames=(
        '{"message":{"messageId":"r1","role":"ROLE_AGENT","parts":[{"text":"yes"}],"contextId":"$C","metadata":{"m":1.0}}}',
    )),
    Interaction("stream: failed with words", frames=(
        WORKING,
        moved("FAILED", ',"message":{"messageId":"w1","role":"ROLE_AGENT","parts":[{"text":"no luck"},{"data":1.0}]}'),
    )),
    Interaction("bare message: without a message id", result=(
        '{"message":{"role":"ROLE_AGENT","parts":[{"text":"yes"}],"contextId":"$C"}}'
    )),
    Interaction("bare message: without a context", result=(
        '{"message":{"messageId":"r1","role":"ROLE_AGENT","parts":[{"text":"yes"}]}}'
    )),
    Interaction("bare message: without a part", result=(
        '{"message":{"messageId":"r1","role":"ROLE_AGENT","parts":[],"contextId":"$C"}}'
    )),
    Interaction("task: rejected", result=done().replace("COMPLETED", "REJECTED")),
    Interaction("task: failed, with an artifact", result=(
        done(artifacts=artifact('[{"text":"x"}]')).replace("COMPLETED", "FAILED")
    )),
    Interaction("task: null members", result=done(',"metadata":null,"history":null', ',"message":null')),
    Interaction("task: empty lists", result=done(',"artifacts":[],"history":[]')),
    Interaction("task: two artifacts with one id", result=(
        done(artifacts=artifact('[{"text":"1"}]') + "," + artifact('[{"text":"2"}]'))
    )),
    Interaction("stream: a status before a task", frames=(
        moved("WORKING"), chunk('[{"text":"x"}]', ',"lastChunk":true'), moved("COMPLETED"),
    )),
    Interaction("stream: an artifact before a task", frames=(
        chunk('[{"text":"x"}]', ',"lastChunk":true'), moved("COMPLETED"),
    )),
    Interaction("stream: the end alone", frames=(moved("COMPLETED", saying("w1", "ok")),)),
    Interaction("stream: rejected at once", frames=(moved("REJECTED", saying("w1", "no")),)),
    Interaction("stream: canceled by the agent", frames=(WORKING, moved("CANCELED"))),
    Interaction("stream: back to submitted", frames=(
        WORKING, moved("SUBMITTED"), moved("WORKING"), moved("COMPLETED"),
    )),
    Interaction("stream: other words under the same id", frames=(
        WORKING, moved("WORKING", saying("w1", "1")), moved("WORKING", saying("w1", "2")), moved("COMPLETED"),
    )),
    Interaction("stream: the same words under another id", frames=(
        WORKING, moved("WORKING", saying("w1", "1")), moved("WORKING", saying("w2", "1")), moved("COMPLETED"),
    )),
    Interaction("stream: neither append nor lastChunk", frames=(
        WORKING, chunk('[{"text":"x"}]'), chunk('[{"text":"y"}]', ',"append":true'), moved("COMPLETED"),
    )),
    Interaction("stream: append is null", frames=(
        WORKING, chunk('[{"text":"x"}]', ',"append":null,"lastChunk":null'), moved("COMPLETED"),
    )),
    Interaction("stream: append before an artifact is open", frames=(
        WORKING, chunk('[{"text":"x"}]', ',"append":true'), moved("COMPLETED"),
    )),
    Interaction("stream: final of 0.3", frames=(WORKING, moved("COMPLETED", update_members=',"final":true'))),
)  # fmt: skip
