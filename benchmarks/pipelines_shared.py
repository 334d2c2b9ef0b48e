"""The pipeline that two builders share: N entities, three stages that each take some milliseconds of a processor.

PIPELINE_ROOT says where its files are.
"""

import hashlib
import os

from tidemill.pipelines import Pipeline

shared = Pipeline("shared", root=os.environ.get("PIPELINE_ROOT", "."), approve_above=None)


def work(text: str) -> str:
    return hashlib.pbkdf2_hmac("sha256", text.encode(), b"salt", 2_000).hex()


@shared.stage(input="in/{id}.txt", output="mid/{id}.txt")
def first(entity, text):
    return work(text)


@shared.stage(input="mid/{id}.txt", output="out/{id}.txt")
def second(entity, text):
    return work(text)


@shared.stage(input="out/{id}.txt", output="end/{id}.txt")
def third(entity, text):
    return work(text)
