from django.db import models


class Order(models.Model):
    """What a customer has ordered."""

    number = models.CharField(max_length=40, unique=True)

    def __str__(self) -> str:
        return str(self.number)
