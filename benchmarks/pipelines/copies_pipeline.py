"""The pipeline that is measured: N entities, two stages of small files, transforms in the process.

PIPELINE_ROOT says where its files are.
"""

import os

from tidemill.pipelines import Pipeline

copies = Pipeline("copies", root=os.environ.get("PIPELINE_ROOT", "."), approve_above=None)


@copies.stage(input="in/{id}.txt", output="mid/{id}.txt", in_process=True)
def first(entity, text):
    return text.upper()


@copies.stage(input="mid/{id}.txt", output="out/{id}.txt", in_process=True)
def second(entity, text):
    return text + "!"
