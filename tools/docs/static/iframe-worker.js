// The theme's search runs in a Worker. Browsers do not start one for a page
// opened from disk, so there a hidden frame runs its script.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      const script = document.createElement("script");
      script.src = url;
      frame.hidden = true;
      frame.srcdoc = script.outerHTML;
      this.scope = new Promise((resolve) => {
        frame.onload = () => {
          frame.contentWindow.postMessage = (data) =>
              this.dispatchEvent(new MessageEvent("message", {data}));
          resolve(frame.contentWindow);
        };
      });
      document.body.append(frame);
    }

    async postMessage(data) {
      const scope = await this.scope;
      scope.dispatchEvent(new MessageEvent("message", {data}));
    }
  };
}
