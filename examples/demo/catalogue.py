"""The pipeline: a page for every product, a shelf of pages for every kind. Only what is out of date is made again.

Its files are in .tidemill/demo-catalogue: change one, or delete a page, and watch. The mystery box has no price, so its
page fails, and is tried again when its file changes or its time has come; no other page waits for it.
"""

import json
from pathlib import Path

from tidemill.pipelines import Pipeline, transform

catalogue = Pipeline("catalogue", root=Path(".tidemill/demo-catalogue"), scan_interval="10s")
catalogue.root.mkdir(parents=True, exist_ok=True)


@catalogue.stage(input="products/{kind}/{name}.json", output="pages/{kind}/{name}.md", max_concurrency=4)
def page(entity, text):
    """The page of a product."""
    product = json.loads(text)
    if "cents" not in product:
        raise ValueError(f'{entity.name} has no price: add "cents" to products/{entity.kind}/{entity.name}.json')
    entity.note(f"{product['cents'] / 100:.2f}")
    return f"# {product['title']}\n\n{product['words']}\n\nOnly {product['cents'] / 100:.2f}!\n"


@catalogue.stage(input="pages/{kind}/{name}.md", output="shelves/{kind}.md", collect="name")
def shelf(entity, files):
    """All pages of a kind."""
    titles = [file.text().splitlines()[0].lstrip("# ") for file in files]
    return f"# {entity.kind}\n\n" + "\n".join(f"- {title}" for title in titles) + "\n"


@transform("leaflet")
def leaflet(entity, text):
    """What workflows/leaflet.json prints of a shelf: open it in the console's editor, change it and save it."""
    return text.replace("# ", "THIS WEEK: ", 1)
