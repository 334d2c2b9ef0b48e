"""The work of a shop, the same with each web framework: `tidemill up shop.py` runs it."""

from pathlib import Path

from tidemill import App

app = App("shop")
app.migrations(Path(__file__).parent / "migrations")  # the table shop.orders


@app.task
async def send_receipt(order_id: int) -> str:
    return f"receipt {order_id}"
