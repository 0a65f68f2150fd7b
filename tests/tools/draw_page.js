// Prints the document of an HTML page after its scripts ran, without a browser:
//
//     node draw_page.js PAGE.html [TEXT ...]
//
// Clicks on the elements that show these texts, in order. Elements keep their
// attributes, text and children. Nothing is laid out.
"use strict";

const fs = require("fs");
const vm = require("vm");

function escaped(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;")
      .replace(/"/g, "&quot;");
}

class Element {
  constructor(tag) {
    this.tag = tag;
    this.attributes = {};
    this.children = [];
    this.style = {};
  }
  setAttribute(name, value) { this.attributes[name] = value; }
  addEventListener(name, handler) { this["on" + name] = handler; }
  append(...children) { this.children.push(...children); }
  insertBefore(child, next) {
    const at = this.children.indexOf(next);
    this.children.splice(at < 0 ? this.children.length : at, 0, child);
  }
  replaceChildren(...children) { this.children = children; }
  get firstChild() { return this.children[0]; }
  set textContent(text) { this.children = [text]; }
  get outerHTML() {
    const attributes = Object.entries(this.attributes).map(
        ([name, value]) => ` ${name}="${escaped(value)}"`).join("");
    const children = this.children.map((child) =>
        child instanceof Element ? child.outerHTML : escaped(child)).join("");
    return `<${this.tag}${attributes}>${children}</${this.tag}>`;
  }
}

const page = fs.readFileSync(process.argv[2], "utf8");
const scripts = [...page.matchAll(/<script([^>]*)>([^]*?)<\/script>/g)];
const data = scripts.find(([, attributes]) => attributes.includes("json"))[2];
const body = new Element("body");
vm.runInNewContext(
    scripts.filter(([, attributes]) => attributes === "")
        .map(([, , code]) => code).join("\n"),
    {
      document: {
        body: body,
        createElement: (tag) => Object.assign(
            new Element(tag), {content: {firstChild: {namespaceURI: "svg"}}}),
        createElementNS: (_, tag) => new Element(tag),
        getElementById: () => ({textContent: data}),
      },
      location: {hash: ""},
      window: {addEventListener() {}},
      console: console,
    });
const find = (element, text) => element.children.includes(text) ? element :
    element.children.filter((child) => child instanceof Element)
        .map((child) => find(child, text)).find((found) => found);
for (const text of process.argv.slice(3)) find(body, text).onclick();
console.log(body.outerHTML);
