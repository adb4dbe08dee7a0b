"""Submits a batch with the stock `openai` client and prints the answers.

Takes OPENAI_BASE_URL (http://127.0.0.1:8080/v1) and OPENAI_API_KEY (a tenant's key) from the
environment, as the client does by itself.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from openai import OpenAI


def main() -> int:
    """The exit status: 0 when every line was answered."""
    if len(sys.argv) != 2:
        sys.exit("usage: submit.py FILE.jsonl")
    path = Path(sys.argv[1])
    with OpenAI() as client:
        file = client.files.create(file=path, purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        while batch.status not in {"completed", "failed", "expired", "cancelled"}:
            time.sleep(1)
            batch = client.batches.retrieve(batch.id)
        print(f"{batch.id}: {batch.status}")
        if batch.output_file_id is not None:
            for row in client.files.content(batch.output_file_id).text.splitlines():
                answer = json.loads(row)
                message = answer["response"]["body"]["choices"][0]["message"]
                print(f"{answer['custom_id']}: {message['content']!r}")
    return 0 if batch.status == "completed" and batch.error_file_id is None else 1


if __name__ == "__main__":
    sys.exit(main())
