"""Calls an agent with nothing but HTTP: ``python call_httpx.py AGENT TEXT``."""

import os
import sys
import uuid

import httpx

URL = os.environ.get("PASSERELLE_URL", "http://127.0.0.1:8080")


def main(agent: str, text: str) -> None:
    headers = {"Authorization": f"Bearer {os.environ['PASSERELLE_TOKEN']}", "A2A-Version": "1.0"}
    # A retry with the same id returns the same task, and the agent gets the message once.
    message = {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": [{"text": text}]}
    with httpx.Client(base_url=f"{URL}/agents/{agent}", headers=headers, timeout=60) as http:
        answer = http.post("/message:send", json={"message": message})
        answer.raise_for_status()
        task = answer.json()["task"]
        print(task["id"], task["status"]["state"])
        for artifact in task.get("artifacts", []):
            print("".join(part.get("text", "") for part in artifact["parts"]))
        # The task is kept: it can be read later, also while its agent is away.
        again = http.get(f"/tasks/{task['id']}").raise_for_status().json()
        print(again["status"]["state"])


if __name__ == "__main__":
    main(*sys.argv[1:])
