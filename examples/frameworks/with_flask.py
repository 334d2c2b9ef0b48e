"""Flask: an order and its receipt are stored in one transaction. Run it with `flask --app with_flask run`."""

from typing import Any

import psycopg
import shop
from flask import Flask, request

from tidemill.core.errors import NotFoundError

web = Flask(__name__)


@web.post("/orders")
def place_order() -> tuple[dict[str, Any], int]:
    quantity = request.get_json()["quantity"]
    with psycopg.connect(shop.app.settings.database_url or "") as connection:  # commits at its end
        row = connection.execute("INSERT INTO shop.orders (quantity) VALUES (%s) RETURNING id", [quantity]).fetchone()
        number = row[0] if row else 0
        job = shop.app.enqueue_sync(shop.send_receipt.call(order_id=number), conn=connection)
    return {"order": number, "job": job.id}, 201


@web.get("/jobs/<int:number>")
def show_job(number: int) -> tuple[dict[str, Any], int]:
    try:
        job = shop.app.wait_sync(number, timeout="30s")
    except NotFoundError as error:
        return {"error": str(error)}, 404
    return {"state": job.state, "result": job.result}, 200
