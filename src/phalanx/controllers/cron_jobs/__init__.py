"""The CronJob controller: creates Jobs at the times of a schedule and deletes old ones.

controller    start times in a time zone, queue of CronJobs, the actions of one reconcile
history       which Jobs a CronJob has created, and the status that follows from them
"""
