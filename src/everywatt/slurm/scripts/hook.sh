#!/bin/sh
# everywatt @EVENT@: tells the node's agent of a job, by a small file that it will find. Written by `everywatt slurm install`.
# shellcheck disable=SC2153 # Slurm sets the variables
# It waits for nothing and always ends with 0: a hook that fails would drain the node.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
event=@EVENT@
spool=@SPOOL@
command=@COMMAND@

alive() {
    # It wrote its pid and start time; a pid that was given to another program has another start.
    pid='' began=''
    read -r pid began <"$spool/$1.pid" || return 1
    read -r line <"/proc/$pid/stat" || return 1
    # shellcheck disable=SC2086 # words are wanted
    set -- ${line##*) }
    [ "$1" != Z ] && [ "${20}" = "$began" ]
}

tell() (
    umask 077
    set -C # a file that is there, or a link, is not written to
    new="$folder/.$event-$SLURM_JOB_ID-$$"
    # NVIDIA, AMD, Intel: Slurm sets the variable of the cards that there are.
    visible=${CUDA_VISIBLE_DEVICES:-${ROCR_VISIBLE_DEVICES:-${HIP_VISIBLE_DEVICES:-$ZE_AFFINITY_MASK}}}
    printf '%s\n' "event=$event" "job_id=$SLURM_JOB_ID" "node=$SLURMD_NODENAME" "cluster=$SLURM_CLUSTER_NAME" \
        "user=$SLURM_JOB_USER" "uid=$SLURM_JOB_UID" "account=$SLURM_JOB_ACCOUNT" "partition=$SLURM_JOB_PARTITION" \
        "cpus=$SLURM_JOB_CPUS_PER_NODE" "gpus=$SLURM_JOB_GPUS" "visible=$visible" \
        "nodes=${SLURM_JOB_NUM_NODES:-$SLURM_NNODES}" \
        "nodelist=${SLURM_JOB_NODELIST:-$SLURM_NODELIST}" "restart=$SLURM_JOB_RESTART_COUNT" \
        "exit_code=$SLURM_JOB_EXIT_CODE2" "sluid=$SLURM_JOB_SLUID" "conf=$SLURM_CONF" "period=@PERIOD@" \
        "array_job_id=$SLURM_ARRAY_JOB_ID" "array_task_id=$SLURM_ARRAY_TASK_ID" \
        "het_job_id=$SLURM_HET_JOB_ID" "het_offset=$SLURM_HET_JOB_OFFSET" \
        "step=$SLURM_STEP_ID" "pid=$SLURM_TASK_PID" "name=$SLURM_JOB_NAME" "whole=yes" >"$new" &&
        mv -nT "$new" "$folder/$event-$SLURM_JOB_ID-${SLURM_JOB_RESTART_COUNT:-0}-$$.event"
    [ ! -e "$new" ] || rm -f "$new"
)

{
    case $event in task) folder=$spool/tasks/$(id -u) ;; *) folder=$spool/events ;; esac
    own=$spool/tasks/$SLURM_JOB_UID
    if [ "$event" = start ] && [ -n "$SLURM_JOB_UID" ] && [ ! -d "$own" ]; then
        mkdir -m 700 "$own" && chown "$SLURM_JOB_UID" "$own"
    fi
    [ -n "$SLURM_JOB_ID" ] && [ -d "$folder" ] && tell
    if [ "$event" = start ] && ! alive agent && ! alive node && ! alive starting; then
        # Slurm ends a hook's process group when the hook ends, so this waits until there is a session of its own. The
        # program may be on a filesystem that does not answer: only that session looks at it, and one at a time.
        # shellcheck disable=SC2016 # expanded in there
        setsid sh -c '
            spool=$1; shift
            umask 022
            [ "$(id -u)" != 0 ] || export EVERYWATT_RUNTIME_DIR="${EVERYWATT_RUNTIME_DIR:-@RUNTIME@}"
            { [ -x "$1" ] && exec "$@"; } &
            read -r line <"/proc/$!/stat" && set -- ${line##*) } && echo "$! ${20}" >"$spool/starting.pid"
        ' sh "$spool" "$command" slurm node --until-idle --node "$SLURMD_NODENAME" --spool "$spool" \
            --store @STORE@ --period @PERIOD@@MORE@
    fi
} </dev/null >/dev/null 2>&1 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-
exit 0
