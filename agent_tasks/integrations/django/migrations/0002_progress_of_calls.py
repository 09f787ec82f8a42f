"""The ledger's tables as of revision 0004."""

from django.db import migrations

from agent_tasks.integrations.django.ledger import UpgradeLedger


class Migration(migrations.Migration):
    """Adds what they lack."""

    dependencies = (("agent_tasks", "0001_ledger"),)
    operations = (UpgradeLedger("0004"),)
