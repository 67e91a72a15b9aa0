"""The simulator: the whole control plane in virtual time; scenarios in, timelines out.

    simulation.py                        runs a scenario file; start reading here
    scenario.py, events.py, fields.py    the scenario file
    driver.py                            turns events into API requests of users and kubelets
    timeline.py                          follows the API and describes what happened
    invariants.py                        what must hold after every transaction
    virtual_time.py                      an event loop whose clock jumps to the next timer, and the
                                         order of what happens at one time

`phalanx simulate` runs long workloads:

    simulation_setup.py                  SimulationSetup and SimulationResult: input and outcome
    core_engine.py                       queue and scheduling cycle alone, without an API server
    engine_selection.py                  the fastest of these engines that applies to a setup
    direct_engine.py                     the same, without the scheduler while no job waits
    direct_placement.py                  the nodes of jobs, by the scores of the scheduler
    queue_engine.py                      first come, first served, without the scheduler:
    placed_engine.py                     the nodes of all jobs follow from the loads of nodes
    direct_reservation.py                the nodes that it keeps for the first waiting job
    counted_engine.py                    the same where it suffices to count free nodes
    full_engine.py                       the whole control plane, driven by the jobs of a workload
    simulation_recorder.py               job records and samples, written by both engines
    gpu_devices.py                       shares of GPUs as devices with consumable capacity
    workloads/                           readers of traces
    recording/                           recordings of live clusters, and their replay
    reports/                             figures of a simulation

The components are the real ones; only event loop, clock and randomness are simulated.
"""
