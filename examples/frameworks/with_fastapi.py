"""FastAPI: an order and its receipt are stored in one transaction. Run it with `uvicorn with_fastapi:api`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import shop
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from tidemill.core.errors import NotFoundError


class Order(BaseModel):
    quantity: int


@asynccontextmanager
async def lifespan(api: FastAPI) -> AsyncIterator[None]:
    async with shop.app, asyncpg.create_pool(shop.app.settings.database_url) as pool:
        api.state.pool = pool
        yield


api = FastAPI(lifespan=lifespan)


@api.post("/orders", status_code=201)
async def place_order(order: Order) -> dict[str, Any]:
    async with api.state.pool.acquire() as connection, shop.app.atomic(connection) as tx:
        number = await connection.fetchval(
            "INSERT INTO shop.orders (quantity) VALUES ($1) RETURNING id", order.quantity
        )
        job = await tx.enqueue(shop.send_receipt.call(order_id=number))
    return {"order": number, "job": job.id}


@api.get("/jobs/{number}")
async def show_job(number: int) -> dict[str, Any]:
    try:
        job = await shop.app.jobs.get(number)
    except NotFoundError as error:
        raise HTTPException(404, str(error)) from error
    return {"state": job.state, "result": job.result}
