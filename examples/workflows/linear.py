"""One step after another, with a typed beginning and a typed end."""

import asyncio

from workflows import Workflow, step
from workflows.events import Event, StartEvent, StopEvent


class Order(StartEvent):
    item: str
    quantity: int


class Priced(Event):
    item: str
    total: int


class Receipt(StopEvent):
    text: str


PRICES = {"flour": 3, "bread": 5}


class Shop(Workflow):
    @step
    async def price(self, ev: Order) -> Priced:
        return Priced(item=ev.item, total=PRICES[ev.item] * ev.quantity)

    @step
    async def write(self, ev: Priced) -> Receipt:
        return Receipt(text=f"{ev.item}: {ev.total}")


async def main() -> None:
    shop = Shop(timeout=10)
    receipt = await shop.run(item="bread", quantity=3)
    print(type(receipt).__name__, receipt.text)
    receipt = await shop.run(start_event=Order(item="flour", quantity=2))
    print(type(receipt).__name__, receipt.text)
    try:
        await shop.run(item="gold", quantity=1)
    except KeyError as error:
        print("not sold:", error)


if __name__ == "__main__":
    asyncio.run(main())
