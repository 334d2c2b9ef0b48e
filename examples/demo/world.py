"""The world around the shop, made up: customers, their reviews, the vans on the road, a hand that edits files."""

import json
import random
import uuid
from collections import deque
from pathlib import Path
from typing import Any

THINGS = ("lantern", "kettle", "raincoat", "map of the coast", "rope", "wool hat", "tide clock", "biscuit tin")
PRAISE = ("lovely, thank you", "perfect", "came fast", "as described", "", "good enough", "")
BLAME = ("awful", "rubbish, never again", "it broke after a day")
VANS = tuple(f"van {number}" for number in range(1, 9))
PRODUCTS = {
    "light": ("storm lantern", "pocket torch", "candle"),
    "kitchen": ("ship's kettle", "biscuit tin", "enamel mug"),
    "clothes": ("raincoat", "wool hat", "sea boots"),
    "surprises": ("mystery box",),
}

_orders: deque[int] = deque([1000], maxlen=200)


def orders() -> list[int]:
    """The numbers of a second's orders."""
    made = [random.randrange(1_000, 100_000) for _ in range(random.randint(2, 6))]
    _orders.extend(made)
    return made


def recent_orders() -> list[int]:
    """Orders that a customer may want refunded."""
    return list(_orders)


def reviews() -> list[Any]:
    """A second's reviews: most are fine, some are broken in ways that a reader of them has to survive."""
    return [_review() for _ in range(random.randint(1, 6))]


def _review() -> Any:
    fate = random.random()
    if fate < 0.02:
        return b'{"thing": "kettle", "stars": '  # broken off on its way
    if fate < 0.04:
        return {"thing": random.choice(THINGS), "stars": 11, "text": "eleven!"}
    if fate < 0.2:
        return {"thing": random.choice(THINGS), "stars": random.randint(1, 2), "text": random.choice(BLAME)}
    return {"thing": random.choice(THINGS), "stars": random.randint(3, 5), "text": random.choice(PRAISE)}


def visits() -> list[dict[str, Any]]:
    """A second's visits."""
    return [
        {"thing": random.choice(THINGS), "seconds": round(random.expovariate(0.2), 1)}
        for _ in range(random.randint(5, 15))
    ]


def readings(now: float) -> list[dict[str, Any]]:
    """What the vans' fridges report. Twice a minute one gets warm for a while, and another one cannot be heard."""
    second = now % 30
    found = []
    for number, van in enumerate(VANS):
        if number == 5 and 8 <= second < 24:
            continue
        warmth = 6.0 if number == 2 and 4 <= second < 18 else 0.0
        celsius = round(4 + warmth + random.gauss(0, 0.3), 2)
        door = "open" if random.random() < 0.004 else "shut"
        found.append({"id": uuid.uuid4().hex, "at": now, "van": van, "celsius": celsius, "door": door})
    return found


def write_product(root: Path) -> str:
    """Write a product that is missing, or change the price of one; returns its name."""
    all_of_them = [(kind, name) for kind, names in PRODUCTS.items() for name in names]
    missing = [each for each in all_of_them if not _file(root, *each).exists()]
    kind, name = missing[0] if missing else random.choice(all_of_them[:-1])
    product = {"title": name.capitalize(), "words": f"A {name} for all weathers."}
    if name != "mystery box":
        product |= {"cents": random.randrange(300, 9_000)}
    file = _file(root, kind, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(product, indent=2) + "\n", encoding="utf-8")
    return f"{kind}/{name}"


def _file(root: Path, kind: str, name: str) -> Path:
    return root / "products" / kind / f"{name.replace(' ', '-')}.json"
