"""An A2A 0.3 SDK caller, controlled by lines of JSON on its standard input; see scripted_clients.py."""

import asyncio
import json
import sys
from uuid import uuid4

import httpx
from a2a.client import ClientConfig, ClientFactory
from a2a.types import (
    Message,
    Part,
    PushNotificationConfig,
    Role,
    TaskIdParams,
    TaskPushNotificationConfig,
    TaskQueryParams,
    TextPart,
)

CARD_URL, TOKEN, BINDING = sys.argv[1:4]


def write(answer):
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def compose(order):
    return Message(
        message_id=str(uuid4()),
        role=Role.user,
        parts=[Part(root=TextPart(text=order["text"]))],
        task_id=order.get("task"),
        context_id=order.get("context"),
    )


def show(value):
    """An object in the form of 0.3, under its kind."""
    shown = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {shown["kind"]: shown}


def show_event(event):
    """A message, or the new part of a task."""
    if isinstance(event, tuple):
        task, update = event
        return show(task if update is None else update)
    return show(event)


class Acts:
    """The supported orders."""

    def __init__(self, unary, streaming):
        self.unary = unary
        self.streaming = streaming

    async def send(self, order, tell):
        result = None
        async for event in self.unary.send_message(compose(order)):
            result = show_event(event)
        return result

    async def stream(self, order, tell):
        async for event in self.streaming.send_message(compose(order)):
            tell(show_event(event))

    async def subscribe(self, order, tell):
        async for event in self.streaming.resubscribe(TaskIdParams(id=order["task"])):
            tell(show_event(event))

    async def get(self, order, tell):
        return show(await self.unary.get_task(TaskQueryParams(id=order["task"])))

    async def cancel(self, order, tell):
        return show(await self.unary.cancel_task(TaskIdParams(id=order["task"])))

    async def push(self, order, tell):
        config = PushNotificationConfig(id="interop", url=order["url"], token=order["secret"])
        wanted = TaskPushNotificationConfig(task_id=order["task"], push_notification_config=config)
        made = await self.unary.set_task_callback(wanted)
        return made.model_dump(mode="json", by_alias=True, exclude_none=True)


async def obey(acts, order):
    def tell(event):
        write({"id": order["id"], "event": event})

    try:
        result = await getattr(acts, order["do"])(order, tell)
    except Exception as error:
        write({"id": order["id"], "error": f"{type(error).__name__}: {error}"})
    else:
        write({"id": order["id"], "result": result or {}})


async def main():
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(headers=headers, timeout=30) as http:
        base, _, path = CARD_URL.rpartition("/.well-known/")
        clients = []
        for streaming in (False, True):
            config = ClientConfig(
                streaming=streaming,
                httpx_client=http,
                supported_transports=[BINDING],
                use_client_preference=True,
            )
            clients.append(
                await ClientFactory.connect(
                    base, client_config=config, relative_card_path=f"/.well-known/{path}"
                )
            )
        acts, running = Acts(*clients), set()
        while line := await asyncio.to_thread(sys.stdin.readline):
            task = asyncio.create_task(obey(acts, json.loads(line)))
            running.add(task)
            task.add_done_callback(running.discard)


asyncio.run(main())
