"""The pipeline that two builders share: N entities, three stages that each take a millisecond of Python.

Functions that release the interpreter would keep all cores busy with one builder, which has a thread for each stage.
PIPELINE_ROOT says where its files are.
"""

import hashlib
import os

from tidemill.pipelines import Pipeline

shared = Pipeline("shared", root=os.environ.get("PIPELINE_ROOT", "."), approve_above=None)


def work(text: str) -> str:
    digest = text.encode()
    for _ in range(3_000):
        digest = hashlib.sha256(digest).digest()
    return digest.hex()


@shared.stage(input="in/{id}.txt", output="mid/{id}.txt")
def first(entity, text):
    return work(text)


@shared.stage(input="mid/{id}.txt", output="out/{id}.txt")
def second(entity, text):
    return work(text)


@shared.stage(input="out/{id}.txt", output="end/{id}.txt")
def third(entity, text):
    return work(text)
