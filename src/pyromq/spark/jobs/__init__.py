"""The jobs of `pyromq spark`, each a function that takes a Spark session and a plan, and returns a report.

from pyromq.spark.jobs.audit.job import AuditPlan, audit
report = audit(spark, AuditPlan(path="/data/store"))
"""
