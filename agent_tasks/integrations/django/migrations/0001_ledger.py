"""The ledger's tables as of revision 0003."""

from django.db import migrations

from agent_tasks.integrations.django.ledger import UpgradeLedger


class Migration(migrations.Migration):
    """Creates them."""

    operations = (UpgradeLedger("0003"),)
