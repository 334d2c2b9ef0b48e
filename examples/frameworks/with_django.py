"""Django: an order and its receipt are stored in one transaction. Run it with `python with_django.py runserver`."""

import json
import sys

import django
import shop
from django.conf import settings
from django.core.management import execute_from_command_line
from django.db import connection, transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path
from psycopg.conninfo import conninfo_to_dict

from tidemill.core.errors import NotFoundError

place = conninfo_to_dict(shop.app.settings.database_url or "")
settings.configure(
    ROOT_URLCONF=__name__,
    SECRET_KEY="change me",
    ALLOWED_HOSTS=["*"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": place.get("dbname"),
            "USER": place.get("user"),
            "PASSWORD": place.get("password"),
            "HOST": place.get("host"),
            "PORT": place.get("port"),
        }
    },
)
django.setup()


def place_order(request: HttpRequest) -> JsonResponse:
    quantity = json.loads(request.body)["quantity"]
    with transaction.atomic(), connection.cursor() as cursor:  # pyright: ignore[reportGeneralTypeIssues]
        cursor.execute("INSERT INTO shop.orders (quantity) VALUES (%s) RETURNING id", [quantity])
        number = cursor.fetchone()[0]
        job = shop.app.enqueue_sync(shop.send_receipt.call(order_id=number), conn=connection)
    return JsonResponse({"order": number, "job": job.id}, status=201)


def show_job(request: HttpRequest, number: int) -> JsonResponse:
    try:
        job = shop.app.wait_sync(number, timeout="30s")
    except NotFoundError as error:
        return JsonResponse({"error": str(error)}, status=404)
    return JsonResponse({"state": job.state, "result": job.result})


urlpatterns = [path("orders", place_order), path("jobs/<int:number>", show_job)]

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
