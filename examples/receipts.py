"""The smallest application: one task, one schedule.

python examples/receipts.py              everything in this process, then the end
tidemill up examples/receipts.py         # the same tasks as a service, in several processes
tidemill enqueue examples/receipts.py send_receipt '{"order_id": 7}'
"""

import asyncio

from tidemill import App

app = App("shop")


@app.task(queue="mail", retry=app.retry(max_attempts=5), budget="2m")
async def send_receipt(order_id: int) -> dict:
    return {"sent": True, "order": order_id}


@app.task(queue="fetch", cron="*/5 * * * *", timezone="Europe/Paris")
def refresh_prices() -> dict:
    return {"prices": 120}


async def main() -> None:
    async with app.running():
        receipt = await app.enqueue(send_receipt.call(order_id=7))
        prices = await app.enqueue(refresh_prices.call())
        print((await app.wait(receipt, timeout="10s")).result)
        print((await app.wait(prices, timeout="10s")).result)


if __name__ == "__main__":
    asyncio.run(main())
